//! Conversations of a model as blobs that carry what they belong to.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use lichen_backend::KvPrecision;
use lichen_engine::{Engine, KeptSession, SessionState};
use lichen_format::Strings;
use lichen_server::{Kept, Restored, Sessions};
use lichen_session::{
    BlobError, BlobReader, BlobWriter, ModelTag, PAGE_TOKENS, Page, Profile, TensorIdentity, digest,
    model_tag, numerics_tag,
};

use crate::load::Opened;

/// Largest blob.
const MOST_BYTES: u64 = 1 << 36;

/// What the numbers of a page depend on beside model and precision. It changes when the page formats do.
pub(crate) const PAGE_FORMAT: &str =
    "keys by channel with rotary embedding applied, values rotated below 8 bits, revision 1";

/// Numbers of precisions in blobs; they never change.
const NUMBERS: [(u32, KvPrecision); 5] = [
    (1, KvPrecision::F16),
    (2, KvPrecision::Q8),
    (3, KvPrecision::Q5),
    (4, KvPrecision::Q4),
    (5, KvPrecision::F32),
];

/// Takes conversations out of an engine and puts them in.
pub(crate) struct ModelSessions {
    engine: Arc<Engine>,
    profile: Profile,
}

impl ModelSessions {
    pub(crate) fn new(engine: Arc<Engine>, profile: Profile) -> Self {
        Self { engine, profile }
    }

    fn write(&self, state: &SessionState) -> Result<Vec<u8>, BlobError> {
        let mut blob = Vec::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let mut writer = BlobWriter::new(&mut blob, &self.profile, [0; 32], now)?;
        writer.tokens(&state.tokens)?;
        let mut left = state.tokens.len() as u64;
        for (precision, page) in &state.pages {
            let tokens = left.min(PAGE_TOKENS);
            left -= tokens;
            writer.page(Page { precision: number(*precision), tokens }, page)?;
        }
        writer.finish()?;
        Ok(blob)
    }

    fn read(&self, blob: &[u8]) -> Result<SessionState, BlobError> {
        let mut reader = BlobReader::open(Cursor::new(blob), &self.profile)?;
        reader.verify()?;
        let mut pages = Vec::new();
        for (index, page) in reader.pages().into_iter().enumerate() {
            let mut bytes = Vec::new();
            reader.read_page(index, &mut bytes)?;
            pages.push((precision(page.precision), bytes));
        }
        Ok(SessionState { tokens: reader.tokens().to_vec(), pages })
    }
}

/// What blobs of a model have to agree with.
pub(crate) fn profile(opened: &Opened) -> Profile {
    let layout = opened.spec.lower().kv;
    let page = |(number, precision): (u32, KvPrecision)| (number, lichen_cpu::page_bytes(&layout, precision));
    let numerics = BTreeMap::from([("pages".to_owned(), PAGE_FORMAT.to_owned())]);
    Profile {
        model: opened.tag(),
        numerics: numerics_tag(&numerics),
        vocabulary: opened.spec.embed.vocab as u32,
        max_tokens: opened.spec.context as u64,
        max_bytes: MOST_BYTES,
        page_bytes: NUMBERS.into_iter().map(page).collect(),
        state_bytes: BTreeMap::new(),
    }
}

impl Sessions for ModelSessions {
    fn list(&self) -> Vec<Kept> {
        let kept = |KeptSession { session, tokens, bytes }| Kept { session, tokens, bytes };
        self.engine.sessions().into_iter().map(kept).collect()
    }

    fn forget(&self, session: u64) -> Option<u64> {
        self.engine.drop_session(session)
    }

    fn export(&self, session: u64) -> Option<Vec<u8>> {
        let state = self.engine.export_session(session)?;
        // What the engine gives fits the model's own profile.
        self.write(&state).ok()
    }

    fn import(&self, session: u64, bytes: &[u8], kv: Option<&str>) -> Result<Restored, String> {
        let kv = kv.map(str::parse::<KvPrecision>).transpose()?;
        let state = self.read(bytes).map_err(|error| error.to_string())?;
        let imported = self.engine.import_session(session, state, kv).map_err(|error| error.to_string())?;
        let pages = imported.pages.into_iter().map(|(precision, pages)| (precision.name(), pages));
        Ok(Restored { tokens: imported.tokens, pages: pages.collect() })
    }
}

/// The number of a precision in blobs.
pub(crate) fn number(precision: KvPrecision) -> u32 {
    let known = NUMBERS.into_iter().find(|(_, known)| *known == precision);
    known.map_or(0, |(number, _)| number)
}

/// The precision of a page that was read with the profile of its model.
pub(crate) fn precision(number: u32) -> KvPrecision {
    let known = NUMBERS.into_iter().find(|(known, _)| *known == number);
    known.expect("the profile lists all numbers").1
}

impl Opened {
    /// The identity of the model. It is made once: samples of all tensors are read for it.
    pub(crate) fn tag(&self) -> ModelTag {
        *self.tag.get_or_init(|| tag(self))
    }
}

/// The identity of a model: what its architecture says of itself, its vocabulary and samples of all its tensors.
fn tag(opened: &Opened) -> ModelTag {
    let metadata = &opened.checkpoint.metadata;
    let architecture = format!("{}.", opened.spec.arch);
    let facts = metadata.iter().filter(|(key, _)| key.starts_with(&architecture));
    let facts = facts.map(|(key, value)| (key.to_owned(), format!("{value:?}"))).collect();
    let tokens = metadata.strings("tokenizer.ggml.tokens").into_iter().flat_map(Strings::iter);
    let tokens = digest(tokens.map(str::as_bytes));
    let data: Vec<_> =
        opened.checkpoint.tensors.iter().map(|tensor| opened.checkpoint.data(tensor)).collect();
    let tensors = opened.checkpoint.tensors.iter().zip(&data);
    let tensors = tensors.map(|(tensor, data)| TensorIdentity {
        name: &tensor.name,
        dtype: tensor.dtype.name(),
        shape: &tensor.shape,
        data,
    });
    model_tag(&facts, &tokens, tensors)
}
