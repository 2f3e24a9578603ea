//! Text to token ids and back.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::byte_level::{self, ByteLevelBpe};
use crate::pieces::Pieces;
use crate::pre_tokenizer::{self, PreTokenizer};
use crate::sentencepiece::{self, SentencePieceBpe};
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyModel};

/// Names under which published models have the token that ends a turn or a document.
const END_OF_GENERATION: [&str; 10] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_sentence|>",
    "<EOT>",
    "</s>",
];

/// Why a tokenizer could not be built from a vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The vocabulary has no tokens, or more than ids can number.
    #[error(
        "the vocabulary has {count} tokens; a tokenizer needs between 1 and 2^31, so the model file is damaged"
    )]
    Size {
        /// Tokens in the vocabulary.
        count: usize,
    },
    /// A list that goes along with the tokens has another length.
    #[error("the vocabulary has {tokens} tokens but {count} {list}; convert the model file again")]
    Length {
        /// Which list: `scores` or `kinds`.
        list: &'static str,
        /// Its length.
        count: usize,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A special token has an id that the vocabulary does not have.
    #[error(
        "the {name} token is id {id}, beyond the {tokens} tokens of the vocabulary; convert the model file again"
    )]
    SpecialId {
        /// Which special token, for example `bos`.
        name: &'static str,
        /// Its id.
        id: u32,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// The pre-tokenizer is not implemented.
    #[error("the pre-tokenizer {name:?} is not supported; supported are {supported}", supported = pre_tokenizer::SUPPORTED)]
    PreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        name: String,
    },
    /// A merge is not two tokens that make a third.
    #[error(
        "the merge {line:?} is not two tokens of the vocabulary that make a third; convert the model file again"
    )]
    Merge {
        /// The line of `tokenizer.ggml.merges`.
        line: String,
    },
    /// The added tokens could not be indexed.
    #[error("the added tokens of the vocabulary could not be indexed")]
    AddedTokens(#[source] aho_corasick::BuildError),
}

/// What [`Tokenizer::encode`] does about special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Add the tokens that the model wants around a text, such as a leading `<s>`.
    pub add_special: bool,
    /// Recognise control tokens that are spelled out in the text, as the output of a chat template needs. Leave it off
    /// for text from users, which must not be able to start a new turn.
    pub parse_special: bool,
}

/// Turns text into token ids and ids into text.
#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    kinds: Vec<TokenKind>,
    pieces: Pieces,
    user_defined: AddedTokens,
    all_added: AddedTokens,
    end_of_generation: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevel(Box<ByteLevelBpe>),
    SentencePiece(SentencePieceBpe),
}

impl Tokenizer {
    /// Builds the indices for a vocabulary.
    ///
    /// # Errors
    ///
    /// [`TokenizerError`] if the vocabulary contradicts itself or names a pre-tokenizer that is not implemented.
    pub fn new(mut vocabulary: Vocabulary<'_>) -> Result<Self, TokenizerError> {
        check(&vocabulary)?;
        if vocabulary.kinds.is_empty() {
            vocabulary.kinds = vec![TokenKind::Normal; vocabulary.tokens.len()];
        }
        let sentencepiece = vocabulary.model == VocabularyModel::SentencePiece;
        let mut pieces = Pieces::default();
        for (token, &kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
            pieces.push(|bytes| piece(token, kind, sentencepiece, bytes));
        }
        let algorithm = if sentencepiece {
            Algorithm::SentencePiece(SentencePieceBpe::new(&vocabulary))
        } else {
            let pre_tokenizer = PreTokenizer::from_gguf(&vocabulary.pre)
                .ok_or_else(|| TokenizerError::PreTokenizer { name: vocabulary.pre.clone() })?;
            Algorithm::ByteLevel(Box::new(ByteLevelBpe::new(&vocabulary, pre_tokenizer, &pieces)?))
        };
        let user_defined = AddedTokens::new(&vocabulary, |kind| kind == TokenKind::UserDefined)?;
        let all_added = AddedTokens::new(&vocabulary, |kind| {
            matches!(kind, TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown)
        })?;
        let mut end_of_generation: Vec<u32> = vocabulary.eos.into_iter().chain(vocabulary.eot).collect();
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            let control = vocabulary.kinds[id as usize] == TokenKind::Control;
            if control && END_OF_GENERATION.contains(&token.as_ref()) {
                end_of_generation.push(id);
            }
        }
        Ok(Self {
            algorithm,
            kinds: vocabulary.kinds,
            pieces,
            user_defined,
            all_added,
            end_of_generation,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            add_bos: vocabulary.add_bos,
            add_eos: vocabulary.add_eos,
            add_space_prefix: vocabulary.add_space_prefix && sentencepiece,
        })
    }

    /// The token ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut ids = Vec::new();
        if options.add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let added = if options.parse_special { &self.all_added } else { &self.user_defined };
        match &self.algorithm {
            Algorithm::ByteLevel(bpe) => {
                added.split(text, &mut ids, |between, ids| bpe.encode(between, &self.pieces, ids));
            }
            Algorithm::SentencePiece(bpe) => {
                let text = text.replace(' ', sentencepiece::SPACE);
                added.split(&text, &mut ids, |between, ids| {
                    if self.add_space_prefix {
                        bpe.encode(&[sentencepiece::SPACE, between].concat(), ids);
                    } else {
                        bpe.encode(between, ids);
                    }
                });
            }
        }
        if options.add_special && self.add_eos {
            ids.extend(self.eos);
        }
        ids
    }

    /// The text of `ids`. Control tokens and ids outside the vocabulary give nothing, bytes that are not UTF-8 give
    /// U+FFFD, and the space that [`Tokenizer::encode`] puts in front of a text is taken off again.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.visible_bytes(id)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let without_prefix = if self.add_space_prefix { text.strip_prefix(' ') } else { None };
        without_prefix.unwrap_or(&text).to_owned()
    }

    /// The bytes of a token, the name for control tokens; empty for a reserved slot and for an id outside the vocabulary.
    pub fn piece_bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).unwrap_or_default()
    }

    /// The bytes that a token adds to a text: none for control tokens.
    pub(crate) fn visible_bytes(&self, id: u32) -> &[u8] {
        if self.is_control(id) { &[] } else { self.piece_bytes(id) }
    }

    /// Whether a token is a control token, which is no text.
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&TokenKind::Control)
    }

    /// Whether a model that generates this token has finished its turn.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// The number of tokens; ids are smaller.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The token that starts a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }
}

/// Rejects vocabularies that contradict themselves.
fn check(vocabulary: &Vocabulary<'_>) -> Result<(), TokenizerError> {
    let tokens = vocabulary.tokens.len();
    if tokens == 0 || tokens > 1 << 31 {
        return Err(TokenizerError::Size { count: tokens });
    }
    let sentencepiece = vocabulary.model == VocabularyModel::SentencePiece;
    let scores = vocabulary.scores.len();
    if scores != tokens && (sentencepiece || scores != 0) {
        return Err(TokenizerError::Length { list: "scores", count: scores, tokens });
    }
    let kinds = vocabulary.kinds.len();
    if kinds != tokens && kinds != 0 {
        return Err(TokenizerError::Length { list: "kinds", count: kinds, tokens });
    }
    let special =
        [("bos", vocabulary.bos), ("eos", vocabulary.eos), ("eot", vocabulary.eot), ("unk", vocabulary.unk)];
    for (name, id) in special {
        if let Some(id) = id.filter(|&id| id as usize >= tokens) {
            return Err(TokenizerError::SpecialId { name, id, tokens });
        }
    }
    Ok(())
}

/// Appends the bytes of a token.
fn piece(token: &str, kind: TokenKind, sentencepiece: bool, bytes: &mut Vec<u8>) {
    match kind {
        TokenKind::Control | TokenKind::Unknown => bytes.extend_from_slice(token.as_bytes()),
        TokenKind::Unused => {}
        TokenKind::Byte => match sentencepiece::byte_of_token(token) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(token.as_bytes()),
        },
        _ if sentencepiece => {
            for (index, part) in token.split(sentencepiece::SPACE).enumerate() {
                if index > 0 {
                    bytes.push(b' ');
                }
                bytes.extend_from_slice(part.as_bytes());
            }
        }
        TokenKind::UserDefined => bytes.extend_from_slice(token.as_bytes()),
        TokenKind::Normal => byte_level::token_bytes(token, bytes),
    }
}

/// Tokens that are found in the text before the algorithm sees what is between them.
#[derive(Debug)]
struct AddedTokens {
    /// `None` if there are no such tokens.
    finder: Option<AhoCorasick>,
    /// The id of each pattern of the finder, and whether white space after it belongs to it.
    patterns: Vec<(u32, bool)>,
}

impl AddedTokens {
    fn new(vocabulary: &Vocabulary<'_>, wanted: impl Fn(TokenKind) -> bool) -> Result<Self, TokenizerError> {
        let sentencepiece = vocabulary.model == VocabularyModel::SentencePiece;
        let mut patterns = Vec::new();
        let mut texts = Vec::new();
        for ((id, token), &kind) in (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds) {
            if wanted(kind) && !token.is_empty() {
                let strips = vocabulary.strip_after_control
                    && kind == TokenKind::Control
                    && !matches!(token.as_ref(), "<s>" | "<unk>" | "<|endoftext|>");
                patterns.push((id, strips));
                // The text has U+2581 for spaces by then; GGUF files have either in these tokens.
                texts.push(if sentencepiece {
                    token.replace(' ', sentencepiece::SPACE)
                } else {
                    token.to_string()
                });
            }
        }
        let finder = if patterns.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            Some(built.map_err(TokenizerError::AddedTokens)?)
        };
        Ok(Self { finder, patterns })
    }

    /// Appends the ids of the added tokens in `text`, and what `encode` appends for the text between them.
    fn split(&self, text: &str, ids: &mut Vec<u32>, encode: impl Fn(&str, &mut Vec<u32>)) {
        let mut at = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            if found.start() < at {
                // Within white space that the token before it swallowed.
                continue;
            }
            if found.start() > at {
                encode(&text[at..found.start()], ids);
            }
            let (id, strips) = self.patterns[found.pattern().as_usize()];
            ids.push(id);
            at = found.end();
            if strips {
                let rest = &text[at..];
                let space = |c: char| c.is_whitespace() || sentencepiece::SPACE.contains(c);
                at = text.len() - rest.trim_start_matches(space).len();
            }
        }
        if at < text.len() {
            encode(&text[at..], ids);
        }
    }
}
