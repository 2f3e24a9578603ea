//! What a GGUF file says about its tokenizer.

use std::borrow::Cow;

/// The algorithm that a vocabulary belongs to (`tokenizer.ggml.model`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyModel {
    /// `gpt2`: byte-level BPE with an explicit list of merges.
    ByteLevelBpe,
    /// `llama`: SentencePiece-style BPE, where the scores of the pieces give the order of merges.
    SentencePiece,
}

impl VocabularyModel {
    /// The algorithm for a value of `tokenizer.ggml.model`, or `None` if it is not supported.
    pub fn from_gguf(name: &str) -> Option<Self> {
        match name {
            "gpt2" => Some(Self::ByteLevelBpe),
            "llama" => Some(Self::SentencePiece),
            _ => None,
        }
    }
}

/// The kind of a token (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// 1: an ordinary piece of text.
    Normal,
    /// 2: stands for text that has no token.
    Unknown,
    /// 3: a control token such as `<s>`; recognised in text on request only, and no text when decoded.
    Control,
    /// 4: an added token that is matched before anything else, in every text.
    UserDefined,
    /// 5: a reserved slot.
    Unused,
    /// 6: one byte, spelled `<0x00>` to `<0xFF>`.
    Byte,
}

impl TokenKind {
    /// The kind for a value of `tokenizer.ggml.token_type`; values outside 1 to 6 count as [`TokenKind::Normal`].
    pub fn from_gguf(value: i32) -> Self {
        match value {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// A vocabulary with everything that the tokenizer needs: the `tokenizer.ggml.*` metadata of a GGUF file. The tokenizer
/// keeps nothing of it, so its texts can stay where the file was read to.
#[derive(Debug, Clone)]
pub struct Vocabulary<'v> {
    /// `tokenizer.ggml.model`.
    pub model: VocabularyModel,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of byte-level BPE, for example `llama-bpe`; empty means `default`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the text of each token, indexed by id.
    pub tokens: Vec<Cow<'v, str>>,
    /// `tokenizer.ggml.scores`, as many as `tokens`; may be empty for byte-level BPE.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, as many as `tokens`; empty means that all are [`TokenKind::Normal`].
    pub kinds: Vec<TokenKind>,
    /// `tokenizer.ggml.merges`: pairs separated by a space, in order of priority; empty for SentencePiece.
    pub merges: Vec<Cow<'v, str>>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`. Absent in a file, it means true for SentencePiece and false for byte-level BPE.
    pub add_bos: bool,
    /// `tokenizer.ggml.add_eos_token`. Absent in a file, it means false.
    pub add_eos: bool,
    /// `tokenizer.ggml.add_space_prefix`. Absent in a file, it means true; only SentencePiece uses it.
    pub add_space_prefix: bool,
    /// Control tokens other than `<s>`, `<unk>` and `<|endoftext|>` swallow the white space after them. GGUF has no key
    /// for it: it is true for `general.architecture` = `phi3`, whose tokenizer.json says `rstrip`.
    pub strip_after_control: bool,
}
