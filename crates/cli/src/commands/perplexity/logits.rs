//! Files of saved logits.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lichen_format::{LogitsHeader, LogitsReader, LogitsWriter};

/// Logits that were saved, row by row.
pub(super) type Saved = LogitsReader<BufReader<File>>;

/// Opens saved logits of the same text.
///
/// # Errors
/// The file can't be read, is damaged, or is about something else.
pub(super) fn open(path: &Path, here: &LogitsHeader) -> Result<Saved> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(|| {
        format!(
            "cannot read {}; --kl-against takes f16, q8, q5, q4 or a file of --save-logits",
            path.display()
        )
    })?;
    let length = file.metadata().with_context(name)?.len();
    let saved = LogitsReader::new(BufReader::new(file), length).with_context(name)?;
    saved.header().same_text(here).with_context(name)?;
    Ok(saved)
}

/// A file of logits that is being written; nobody sees it under its name before it is whole.
pub(super) struct Save {
    writer: LogitsWriter<BufWriter<File>>,
    part: PathBuf,
    path: PathBuf,
}

/// Begins a file of logits.
///
/// # Errors
/// It can't be written.
pub(super) fn create(path: &Path, header: LogitsHeader) -> Result<Save> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let writer = LogitsWriter::new(BufWriter::new(file), header)?;
    Ok(Save { writer, part, path: path.to_owned() })
}

impl Save {
    pub(super) fn row(&mut self, logits: &[f32]) -> Result<()> {
        self.writer.row(logits).with_context(|| self.part.display().to_string())
    }

    pub(super) fn finish(self) -> Result<()> {
        self.writer.finish().with_context(|| self.part.display().to_string())?;
        std::fs::rename(&self.part, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
