//! Logits that are saved come back, and damaged ones are refused.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_format::{LogitNumber, LogitsError, LogitsHeader, LogitsReader, LogitsWriter, tokens_hash};
use proptest::prelude::*;

fn header(number: LogitNumber, rows: u64) -> LogitsHeader {
    LogitsHeader { number, vocabulary: 3, chunk: 8, tokens_hash: tokens_hash([1, 2, 3]), rows }
}

fn saved(number: LogitNumber) -> Vec<u8> {
    let mut writer = LogitsWriter::new(Vec::new(), header(number, 2)).unwrap();
    writer.row(&[1.0, -2.5, 4.0]).unwrap();
    writer.row(&[f32::NEG_INFINITY, 0.25, 0.0]).unwrap();
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<Vec<f32>>, LogitsError> {
    let mut reader = LogitsReader::new(bytes, bytes.len() as u64)?;
    let mut rows = Vec::new();
    while let Some(row) = reader.row()? {
        rows.push(row);
    }
    Ok(rows)
}

#[test]
fn rows_come_back_less_their_largest_logit() {
    for number in [LogitNumber::F16, LogitNumber::F32] {
        let rows = read(&saved(number)).unwrap();
        assert_eq!(rows, [[-3.0, -6.5, 0.0], [-65504.0, 0.0, -0.25]]);
    }
}

#[test]
fn a_file_of_another_text_is_refused_by_what_differs() {
    let here = header(LogitNumber::F16, 2);
    assert!(here.same_text(&header(LogitNumber::F32, 2)).is_ok(), "how they are stored does not matter");
    for (other, what) in [
        (LogitsHeader { vocabulary: 4, ..here }, "vocabulary"),
        (LogitsHeader { chunk: 9, ..here }, "--ctx"),
        (LogitsHeader { rows: 9, ..here }, "chunks"),
        (LogitsHeader { tokens_hash: 9, ..here }, "text or tokenizer"),
    ] {
        let told = other.same_text(&here).unwrap_err().to_string();
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn a_writer_holds_to_what_it_announced() {
    let mut writer = LogitsWriter::new(Vec::new(), header(LogitNumber::F32, 1)).unwrap();
    assert!(writer.row(&[0.0; 2]).is_err(), "too short");
    writer.row(&[0.0; 3]).unwrap();
    assert!(writer.row(&[0.0; 3]).is_err(), "too many");
    let missing = LogitsWriter::new(Vec::new(), header(LogitNumber::F32, 1)).unwrap();
    assert!(missing.finish().is_err());
}

#[test]
fn a_header_that_promises_more_than_there_is_costs_no_memory() {
    let mut bytes = saved(LogitNumber::F16);
    bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(read(&bytes), Err(LogitsError::Length { .. })));
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&bytes), Err(LogitsError::Field { .. })));
    assert!(matches!(read(b"GGUF"), Err(LogitsError::Length { .. })));
    assert!(matches!(read(&[0; 48]), Err(LogitsError::Magic)));
    let mut bytes = saved(LogitNumber::F32);
    bytes[48..52].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(read(&bytes), Err(LogitsError::NotFinite(0))));
}

proptest! {
    #[test]
    fn any_damage_is_refused_or_gives_rows_of_the_vocabulary(at in 0usize..60, byte: u8, cut in 0usize..70) {
        let mut bytes = saved(LogitNumber::F16);
        if let Some(damaged) = bytes.get_mut(at) {
            *damaged = byte;
        }
        bytes.truncate(cut);
        if let Ok(rows) = read(&bytes) {
            prop_assert!(rows.iter().flatten().all(|logit| logit.is_finite()));
        }
    }
}
