//! Builds a tokenizer from any vocabulary, and takes any text there and any ids back.
#![no_main]

use arbitrary::Arbitrary;
use lichen_text::{
    Detokenizer, EncodeOptions, StopMatcher, TokenKind, Tokenizer, Vocabulary, VocabularyModel,
};

/// What a file may say.
#[derive(Arbitrary, Debug)]
struct Input {
    sentencepiece: bool,
    pre: u8,
    tokens: Vec<(String, f32, u8)>,
    /// Pairs of tokens; those that make no token are left out unless `bad_merge` is set.
    merges: Vec<(u8, u8)>,
    bad_merge: Option<String>,
    /// All bytes as tokens, so that merges have something to work on.
    alphabet: bool,
    special: [Option<u8>; 4],
    flags: [bool; 4],
    text: String,
    ids: Vec<u32>,
    stops: Vec<String>,
}

const PRE: [&str; 7] = ["", "gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"];

fn vocabulary(input: &Input) -> Vocabulary<'static> {
    let mut entries = input.tokens.clone();
    if input.alphabet {
        let bytes = (0..=255_u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6));
        let letters = ('!'..='~').chain('\u{a1}'..='\u{143}').map(|c| (c.to_string(), 0.0, 1));
        if input.sentencepiece { entries.extend(bytes) } else { entries.extend(letters) }
    }
    let token = |index: u8| entries.get(usize::from(index)).map_or("", |entry| &entry.0);
    let known = |text: &str| entries.iter().any(|entry| entry.0 == text);
    let mut merges: Vec<String> = Vec::new();
    for &(left, right) in &input.merges {
        let (left, right) = (token(left), token(right));
        if known(left) && !left.contains(' ') && known(&[left, right].concat()) {
            merges.push(format!("{left} {right}"));
        }
    }
    merges.extend(input.bad_merge.clone());
    let [bos, eos, eot, unk] = input.special.map(|id| id.map(u32::from));
    let [add_bos, add_eos, add_space_prefix, strip_after_control] = input.flags;
    Vocabulary {
        model: if input.sentencepiece {
            VocabularyModel::SentencePiece
        } else {
            VocabularyModel::ByteLevelBpe
        },
        pre: PRE[usize::from(input.pre) % PRE.len()].to_owned(),
        scores: entries.iter().map(|entry| entry.1).collect(),
        kinds: entries.iter().map(|entry| TokenKind::from_gguf(i32::from(entry.2) % 7)).collect(),
        tokens: entries.into_iter().map(|entry| entry.0.into()).collect(),
        merges: merges.into_iter().map(Into::into).collect(),
        bos,
        eos,
        eot,
        unk,
        add_bos,
        add_eos,
        add_space_prefix,
        strip_after_control,
    }
}

libfuzzer_sys::fuzz_target!(|input: Input| {
    let Ok(tokenizer) = Tokenizer::new(vocabulary(&input)) else { return };
    for bits in 0..4 {
        let options = EncodeOptions { add_special: bits & 1 != 0, parse_special: bits & 2 != 0 };
        let ids = tokenizer.encode(&input.text, options);
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "an id beyond the vocabulary");
        let _ = tokenizer.decode(&ids);
    }
    let _ = tokenizer.decode(&input.ids);
    stream(&tokenizer, &input);
});

/// Text that arrives token by token is the text of all tokens, and stop strings lose nothing of it.
fn stream(tokenizer: &Tokenizer, input: &Input) {
    let mut detokenizer = Detokenizer::new(tokenizer);
    let mut stops = StopMatcher::new(input.stops.clone());
    let (mut text, mut shown, mut stopped) = (String::new(), String::new(), false);
    let ids = input.ids.iter().map(|id| id % (tokenizer.vocab_size() as u32 + 1));
    let ids: Vec<u32> = ids.collect();
    let pieces = ids.iter().map(|&id| detokenizer.push(id)).collect::<Vec<_>>();
    for piece in pieces.into_iter().chain([detokenizer.flush()]) {
        text.push_str(&piece);
        let part = stops.push(&piece);
        shown.push_str(&part.text);
        stopped |= part.stopped;
    }
    shown.push_str(&stops.flush());
    let whole = tokenizer.decode(&ids);
    assert!(text == whole || text.strip_prefix(' ') == Some(&whole), "{text:?} is not {whole:?}");
    assert!(text.starts_with(&shown), "{shown:?} is no start of {text:?}");
    let nonempty = || input.stops.iter().filter(|stop| !stop.is_empty());
    assert_eq!(stopped, nonempty().any(|stop| text.contains(stop)), "{text:?}");
    assert!(!nonempty().any(|stop| shown.contains(stop)), "{shown:?}");
    assert!(stopped || shown == text, "{shown:?} is not {text:?}");
}
