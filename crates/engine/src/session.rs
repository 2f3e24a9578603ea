//! Conversations as values: taken out of an engine and put into one.

use crate::Engine;
use crate::worker::{Command, Worker};
use lichen_backend::{KvPrecision, PageError, PageSet};
use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The number of the sequence that has the pages of a conversation while they are converted.
const IMPORTED: u64 = u64::MAX;

/// The state of a conversation: its tokens, and the pages of the first of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    /// All tokens that have state.
    pub tokens: Vec<u32>,
    /// Pages in order, as the backend stores them.
    pub pages: Vec<(KvPrecision, Vec<u8>)>,
}

/// What of a conversation has state in its new engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Tokens that need not be computed again.
    pub tokens: usize,
    /// How many pages are stored in each precision.
    pub pages: BTreeMap<KvPrecision, usize>,
}

/// A session that has state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptSession {
    /// Its number.
    pub session: u64,
    /// Tokens of its conversation that was used last.
    pub tokens: usize,
    /// Bytes of the pages of that; sessions that begin alike share some.
    pub bytes: u64,
}

/// Why a conversation could not be put into an engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A page isn't one of this model.
    #[error(transparent)]
    Page(#[from] PageError),
    /// It is longer than what may be kept.
    #[error("the conversation has {tokens} tokens and the context cap is {cap}")]
    TooLong {
        /// Of the conversation.
        tokens: usize,
        /// The cap.
        cap: usize,
    },
    /// There is no room for its pages.
    #[error(
        "there is no room for the {0} bytes of the conversation now; try again later or raise the budget"
    )]
    NoRoom(u64),
    /// The engine's thread has ended.
    #[error("the engine's thread has ended")]
    Ended,
}

/// What the engine's thread is asked about sessions.
pub(crate) enum SessionCommand {
    List(SyncSender<Vec<KeptSession>>),
    Drop(u64, SyncSender<Option<u64>>),
    Export(u64, SyncSender<Option<SessionState>>),
    Import(u64, Box<SessionState>, Option<KvPrecision>, SyncSender<Result<Imported, ImportError>>),
}

impl Engine {
    /// The conversation of a session that was used last, if one is kept. Waits for the step that runs.
    pub fn export_session(&self, session: u64) -> Option<SessionState> {
        let (answer, answered) = sync_channel(1);
        let command = Command::Session(SessionCommand::Export(session, answer));
        self.commands().send(command).ok()?;
        answered.recv().ok()?
    }

    /// The sessions that have state, by number; none once the engine's thread has ended. Waits for the step that runs.
    pub fn sessions(&self) -> Vec<KeptSession> {
        let (answer, answered) = sync_channel(1);
        let sent = self.commands().send(Command::Session(SessionCommand::List(answer)));
        sent.ok().and_then(|()| answered.recv().ok()).unwrap_or_default()
    }

    /// Gives up the state of a session, and returns how many bytes that freed; nothing if there is none. What running
    /// sequences use, and what other sessions begin with too, stays. Waits for the step that runs.
    pub fn drop_session(&self, session: u64) -> Option<u64> {
        let (answer, answered) = sync_channel(1);
        self.commands().send(Command::Session(SessionCommand::Drop(session, answer))).ok()?;
        answered.recv().ok()?
    }

    /// Keeps a conversation for a session, and returns what has state. Waits for the step that runs.
    ///
    /// With a precision, pages that are finer come to it as those of a running sequence would: all but the first and
    /// the newest. Pages that are coarser stay as they are; what they have lost doesn't come back.
    ///
    /// # Errors
    /// It is none of this model, too long, or there is no room; nothing is changed then.
    pub fn import_session(
        &self,
        session: u64,
        state: SessionState,
        precision: Option<KvPrecision>,
    ) -> Result<Imported, ImportError> {
        let (answer, answered) = sync_channel(1);
        let command = Command::Session(SessionCommand::Import(session, Box::new(state), precision, answer));
        self.commands().send(command).map_err(|_| ImportError::Ended)?;
        answered.recv().map_err(|_| ImportError::Ended)?
    }
}

impl Worker<'_> {
    pub(crate) fn session(&mut self, command: SessionCommand) {
        // Whoever asked may have gone.
        match command {
            SessionCommand::List(answer) => drop(answer.send(self.kept_sessions())),
            SessionCommand::Drop(session, answer) => drop(answer.send(self.drop_session(session))),
            SessionCommand::Export(session, answer) => drop(answer.send(self.export(session))),
            SessionCommand::Import(session, state, precision, answer) => {
                drop(answer.send(self.import(session, &state, precision)));
            }
        }
    }

    fn kept_sessions(&self) -> Vec<KeptSession> {
        let kept = |session: u64| {
            let (tokens, pages) = self.cache.latest(session)?;
            let bytes = pages.into_iter().map(|page| self.executor.page_size(page)).sum();
            Some(KeptSession { session, tokens: tokens.len(), bytes })
        };
        self.cache.all_sessions().into_iter().filter_map(kept).collect()
    }

    fn drop_session(&mut self, session: u64) -> Option<u64> {
        self.cache.latest(session)?;
        let freed = self.cache.forget(&mut *self.executor, session);
        self.settle(0);
        self.publish();
        Some(freed)
    }

    fn export(&self, session: u64) -> Option<SessionState> {
        let (tokens, pages) = self.cache.latest(session)?;
        let pages = pages.into_iter().map(|page| self.executor.export_page(page)).collect::<Option<_>>()?;
        Some(SessionState { tokens, pages })
    }

    fn import(
        &mut self,
        session: u64,
        state: &SessionState,
        precision: Option<KvPrecision>,
    ) -> Result<Imported, ImportError> {
        let (tokens, cap) = (state.tokens.len(), self.config.context_cap);
        if tokens > cap {
            return Err(ImportError::TooLong { tokens, cap });
        }
        let bytes: u64 = state.pages.iter().map(|(_, page)| page.len() as u64).sum();
        self.make_room(state.pages.len());
        if self.executor.kv_bytes().saturating_add(bytes) > self.account.ceiling() {
            self.settle(0);
            return Err(ImportError::NoRoom(bytes));
        }
        let mut pages = Vec::new();
        for (precision, page) in &state.pages {
            match self.executor.import_page(*precision, page) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    pages.into_iter().for_each(|page| self.executor.release(page));
                    self.settle(0);
                    return Err(error.into());
                }
            }
        }
        let covered = tokens.min(pages.len() * self.executor.page_tokens());
        if let Some(precision) = precision {
            // A sequence tells the backend which tokens its pages have. Where there is no memory for a page in between,
            // pages stay as they are.
            self.executor.adopt(IMPORTED, &pages, covered);
            let _ = self.executor.requantise(PageSet::Sequence(IMPORTED), precision);
            self.executor.drop_sequence(IMPORTED);
        }
        let sizes: Vec<u64> = pages.iter().map(|page| self.executor.page_size(*page)).collect();
        self.cache.insert(&mut *self.executor, &state.tokens[..covered], &pages, Some(session));
        self.settle(0);
        self.publish();
        let of_size =
            |size| KvPrecision::ALL.into_iter().find(|&kind| self.executor.page_bytes(kind) == size);
        let mut pages = BTreeMap::new();
        sizes.into_iter().filter_map(of_size).for_each(|kind| *pages.entry(kind).or_default() += 1);
        Ok(Imported { tokens: covered, pages })
    }
}
