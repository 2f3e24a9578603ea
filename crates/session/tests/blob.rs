//! What a blob keeps, and what its reader and writer refuse.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::collections::BTreeSet;
use std::io::Cursor;

use common::{
    CREATED, Conversation, ID, METADATA, NARROW, RawBlob, RawSection, WIDE, conversation, plain, profile,
};
use lichen_session::{
    BlobError, BlobReader, BlobWriter, ModelTag, NumericsTag, Page, Profile, SectionName, StateAt,
    read_tokens,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The only format of states.
const FORMAT: u32 = 1;

fn reason(result: Result<impl std::fmt::Debug, BlobError>) -> (&'static str, Option<SectionName>) {
    let error = result.unwrap_err();
    (error.reason(), error.section())
}

/// How a conversation is refused by its writer.
fn write_refused(change: impl FnOnce(&mut Conversation)) -> (&'static str, Option<SectionName>) {
    let mut changed = conversation();
    change(&mut changed);
    reason(changed.to_blob())
}

/// How a blob is refused by a reader of another profile.
fn read_refused(change: impl FnOnce(&mut Profile)) -> (&'static str, Option<SectionName>) {
    let mut profile = profile();
    change(&mut profile);
    reason(Conversation::from_blob_for(&conversation().to_blob().unwrap(), &profile))
}

/// How a blob of changed sections is refused.
fn sections_refused(change: impl FnOnce(&mut Vec<RawSection>)) -> (&'static str, Option<SectionName>) {
    let mut raw = RawBlob::conversation();
    change(&mut raw.sections);
    reason(Conversation::from_blob(&raw.encode()))
}

#[test]
fn what_is_read_is_what_was_written() {
    let blob = conversation().to_blob().unwrap();
    assert_eq!(Conversation::from_blob(&blob).unwrap(), conversation());
    let reader = BlobReader::open(Cursor::new(&blob), &profile()).unwrap();
    let header = *reader.header();
    assert_eq!((header.model, header.numerics), (profile().model, profile().numerics));
    assert_eq!((header.id, header.created_unix_ms, reader.bytes()), (ID, CREATED, blob.len() as u64));
}

#[test]
fn a_conversation_may_have_tokens_only_or_nothing() {
    for tokens in [vec![], vec![1, 2, 999]] {
        let only = Conversation { tokens, ..Conversation::default() };
        assert_eq!(Conversation::from_blob(&only.to_blob().unwrap()).unwrap(), only);
    }
}

#[test]
fn a_page_is_read_without_the_others() {
    let mut blob = conversation().to_blob().unwrap();
    let first = blob.windows(100).position(|window| window == [10; 100]).unwrap();
    blob[first] = 0;
    let mut reader = BlobReader::open(Cursor::new(&blob), &profile()).unwrap();
    let mut bytes = vec![1, 2, 3];
    reader.read_page(1, &mut bytes).unwrap();
    assert_eq!(bytes, [11; 40]);
    let damaged = reader.read_page(0, &mut bytes);
    assert_eq!(reason(damaged), ("checksum", Some(SectionName::Page(0))));
    assert!(bytes.is_empty(), "damaged bytes are not handed out");
}

#[test]
fn another_model_is_refused_and_other_numerics_leave_the_tokens() {
    let header = Some(SectionName::Header);
    assert_eq!(
        read_refused(|profile| profile.model = ModelTag::from_bytes([9; 32])),
        ("other_model", header)
    );
    let other = |profile: &mut Profile| profile.numerics = NumericsTag::from_bytes([9; 32]);
    assert_eq!(read_refused(other), ("other_numerics", header));
    let mut profile = profile();
    other(&mut profile);
    let blob = conversation().to_blob().unwrap();
    assert_eq!(read_tokens(Cursor::new(&blob), &profile).unwrap(), conversation().tokens);
    profile.model = ModelTag::from_bytes([9; 32]);
    assert_eq!(reason(read_tokens(Cursor::new(&blob), &profile)), ("other_model", header));
}

#[test]
fn another_geometry_is_refused_by_the_reader() {
    let page = |number| Some(SectionName::Page(number));
    assert_eq!(
        read_refused(|profile| profile.page_bytes = [(WIDE, 101), (NARROW, 40)].into()),
        ("geometry", page(0))
    );
    assert_eq!(read_refused(|profile| profile.page_bytes = [(WIDE, 100)].into()), ("format", page(1)));
    let checkpoint = Some(SectionName::Checkpoint(64));
    assert_eq!(read_refused(|profile| profile.state_bytes = [(1, 23)].into()), ("geometry", checkpoint));
    assert_eq!(read_refused(|profile| profile.state_bytes.clear()), ("format", checkpoint));
}

#[test]
fn limits_of_the_reader_hold() {
    let tokens = Some(SectionName::Tokens);
    assert_eq!(read_refused(|profile| profile.vocabulary = 903), ("token", tokens));
    assert_eq!(read_refused(|profile| profile.max_tokens = 129), ("too_large", tokens));
    let length = conversation().bytes();
    assert_eq!(
        read_refused(|profile| profile.max_bytes = length - 1),
        ("too_large", Some(SectionName::Header))
    );
    let blob = conversation().to_blob().unwrap();
    let exact = Profile { vocabulary: 904, max_tokens: 130, max_bytes: length, ..profile() };
    assert!(Conversation::from_blob_for(&blob, &exact).is_ok());
}

#[test]
fn nothing_is_written_that_would_not_be_read() {
    let tokens = Some(SectionName::Tokens);
    let page = |number| Some(SectionName::Page(number));
    assert_eq!(write_refused(|all| all.tokens[5] = 1000), ("token", tokens));
    assert_eq!(write_refused(|all| all.tokens = vec![0; 4097]), ("too_large", tokens));
    assert_eq!(write_refused(|all| all.tokens.truncate(129)), ("layout", page(2)));
    assert_eq!(write_refused(|all| all.pages[0].0.tokens = 63), ("layout", page(1)));
    assert_eq!(write_refused(|all| all.pages[2].0.tokens = 0), ("layout", page(2)));
    assert_eq!(write_refused(|all| all.pages[0].0.tokens = 65), ("layout", page(0)));
    assert_eq!(write_refused(|all| all.pages[1].0.precision = 5), ("format", page(1)));
    assert_eq!(write_refused(|all| all.pages[1].1.push(0)), ("geometry", page(1)));
    let state = |position| Some((StateAt { format: FORMAT, position }, vec![0; 24]));
    assert_eq!(write_refused(|all| all.state = state(131)), ("layout", Some(SectionName::State)));
    let twice = |all: &mut Conversation| all.checkpoints.push(all.checkpoints[0].clone());
    assert_eq!(write_refused(twice), ("layout", Some(SectionName::Checkpoint(64))));
    let many = |all: &mut Conversation| all.checkpoints = (0..65).filter_map(state).collect();
    assert_eq!(write_refused(many), ("too_large", Some(SectionName::Checkpoint(64))));
    let small = Profile { max_bytes: 5000, ..profile() };
    let mut writer = BlobWriter::new(Vec::new(), &small, ID, CREATED).unwrap();
    assert_eq!(reason(plain(vec![0; 4096], 0).write(&mut writer)), ("too_large", tokens));
    let empty = BlobWriter::new(Vec::new(), &small, ID, CREATED).unwrap();
    assert_eq!(reason(empty.finish()), ("layout", tokens));
}

#[test]
fn unknown_sections_are_skipped_if_they_may_be() {
    let with = |kind| {
        let mut raw = RawBlob { minor: 9, ..RawBlob::conversation() };
        let payload = b"from the future".to_vec();
        raw.sections.insert(1, RawSection { kind, payload, ..RawSection::default() });
        raw.encode()
    };
    assert_eq!(Conversation::from_blob(&with(0x8000_0777)).unwrap(), conversation());
    let refused = Conversation::from_blob(&with(0x777));
    assert_eq!(reason(refused), ("unknown_section", Some(SectionName::Unknown(0x777))));
    // Skipped by readers, yet not by those who want to know whether all of the blob is sound.
    let mut damaged = with(0x8000_0777);
    let place = damaged.windows(4).position(|window| window == b"from").unwrap();
    damaged[place] = b'F';
    let mut reader = BlobReader::open(Cursor::new(&damaged), &profile()).unwrap();
    assert_eq!(reason(reader.verify()), ("checksum", Some(SectionName::Unknown(0x8000_0777))));
}

#[test]
fn other_major_versions_and_reserved_bits_are_refused() {
    let header = Some(SectionName::Header);
    let refused = |raw: RawBlob| reason(Conversation::from_blob(&raw.encode()));
    assert_eq!(refused(RawBlob { major: 2, ..RawBlob::conversation() }), ("version", header));
    let reserved = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(refused(RawBlob { reserved, ..RawBlob::conversation() }), ("layout", header));
    assert_eq!(reason(Conversation::from_blob(&[b'x'; 500])), ("not_a_blob", header));
}

#[test]
fn sections_follow_the_rules_whatever_the_checksums_say() {
    let page = |number| ("layout", Some(SectionName::Page(number)));
    let (tokens, metadata) = (Some(SectionName::Tokens), Some(SectionName::Metadata));
    assert_eq!(sections_refused(Vec::clear), ("layout", tokens));
    assert_eq!(sections_refused(|all| all.swap(0, 1)), ("layout", metadata));
    assert_eq!(sections_refused(|all| all.insert(1, all[0].clone())), ("layout", tokens));
    assert_eq!(sections_refused(|all| all[0].count = 129), ("layout", tokens));
    assert_eq!(sections_refused(|all| all[0].count = u64::MAX), ("too_large", tokens));
    assert_eq!(sections_refused(|all| all.insert(2, all[1].clone())), ("layout", metadata));
    assert_eq!(sections_refused(|all| all[1].first = 1), ("layout", metadata));
    assert_eq!(sections_refused(|all| all[2].first = 1), page(1));
    assert_eq!(sections_refused(|all| all[2].first = u64::MAX), page(u64::MAX));
    assert_eq!(sections_refused(|all| all[2].count = u64::MAX), page(0));
    assert_eq!(sections_refused(|all| all.push(all[6].clone())), ("layout", Some(SectionName::State)));
    assert_eq!(sections_refused(|all| all[6].first = u64::MAX), ("layout", Some(SectionName::State)));
    let extra = RawSection { kind: 0x8000_0002, ..RawSection::default() };
    let many = |all: &mut Vec<RawSection>| all.resize((1 << 16) + 1, extra);
    assert_eq!(sections_refused(many), ("too_large", Some(SectionName::Table)));
    let spread = RawBlob { spread: 64, ..RawBlob::conversation() };
    assert_eq!(reason(Conversation::from_blob(&spread.encode())), ("layout", tokens));
    let filled = RawBlob { gap: 1, ..RawBlob::conversation() };
    assert_eq!(reason(Conversation::from_blob(&filled.encode())), ("layout", tokens));
}

#[test]
fn metadata_is_a_small_flat_map() {
    let refused = |payload: &str| {
        sections_refused(|all| {
            all[1] = RawSection { kind: METADATA, payload: payload.into(), ..RawSection::default() }
        })
    };
    let metadata = |reason| (reason, Some(SectionName::Metadata));
    assert_eq!(refused("[]"), metadata("metadata"));
    assert_eq!(refused("{\"a\":"), metadata("metadata"));
    assert_eq!(refused(&"[".repeat(60_000)), metadata("metadata"));
    assert_eq!(refused(&format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 16))), metadata("too_large"));
    let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    let with = |depth| Conversation {
        metadata: [("a".to_owned(), nested(depth))].into_iter().collect(),
        ..conversation()
    };
    assert_eq!(Conversation::from_blob(&with(7).to_blob().unwrap()).unwrap(), with(7));
    assert_eq!(reason(with(8).to_blob()), metadata("metadata"));
    assert_eq!(refused(&json!({"a": nested(8)}).to_string()), metadata("metadata"));
}

#[test]
fn messages_name_the_thing_and_the_way_out() {
    let message = |change: fn(&mut Profile)| {
        let mut profile = profile();
        change(&mut profile);
        Conversation::from_blob_for(&conversation().to_blob().unwrap(), &profile).unwrap_err().to_string()
    };
    let geometry = message(|profile| profile.page_bytes = [(WIDE, 100), (NARROW, 44)].into());
    assert_eq!(geometry, "session blob does not fit the model: page 1 has 40 bytes, not 44");
    let vocabulary = message(|profile| profile.vocabulary = 900);
    assert_eq!(vocabulary, "session blob: token 903 at place 129 is not in the vocabulary of 900");
}

prop_compose! {
    fn any_conversation()(
        tokens in vec(0_u32..1000, 0..400),
        covered in 0_usize..400,
        bytes in any::<[u8; 3]>(),
        at in vec(0_u64..400, 0..5),
        title in ".{0,20}",
    ) -> Conversation {
        let pages = tokens[..covered.min(tokens.len())].chunks(64).zip(0_u8..).map(|(chunk, number)| {
            let (precision, length) = if number % 2 == 0 { (WIDE, 100) } else { (NARROW, 40) };
            (Page { precision, tokens: chunk.len() as u64 }, vec![bytes[0].wrapping_add(number); length])
        });
        let state = |position| (StateAt { format: FORMAT, position }, vec![bytes[1]; 24]);
        let positions: BTreeSet<u64> = at.into_iter().filter(|&at| at <= tokens.len() as u64).collect();
        Conversation {
            pages: pages.collect(),
            metadata: [("title".to_owned(), Value::String(title))].into_iter().collect(),
            checkpoints: positions.iter().copied().map(state).collect(),
            state: positions.last().copied().map(state),
            tokens,
        }
    }
}

proptest! {
    #[test]
    fn any_conversation_comes_back(all in any_conversation()) {
        prop_assert_eq!(Conversation::from_blob(&all.to_blob().unwrap()).unwrap(), all);
    }

    #[test]
    fn any_table_is_read_or_refused(
        edits in vec((0_usize..7 * 72, any::<u8>()), 1..4),
        kind in any::<u32>(),
    ) {
        let mut raw = RawBlob::conversation();
        raw.sections[4].kind = kind;
        let blob = raw.encode_with(|table| edits.iter().for_each(|&(place, byte)| table[place] = byte));
        // Any verdict will do; what is read fits the profile.
        if let Ok(read) = Conversation::from_blob(&blob) {
            prop_assert!(read.pages.iter().all(|(_, bytes)| [100, 40].contains(&bytes.len())));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..600), header in any::<bool>()) {
        if header {
            let blob = RawBlob::conversation().encode();
            let end = bytes.len().min(128);
            bytes[..end].copy_from_slice(&blob[..end]);
            bytes.extend(b"LCHN.end");
        }
        prop_assert!(Conversation::from_blob(&bytes).is_err());
    }
}
