//! How a constraint behaves within a generation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{CALL, END, allowed, compiler, follows, vocabulary};
use lichen_constraint::{Grammar, GrammarCompiler, GrammarError, TokenText, Vocabulary};
use lichen_generate::Constraint;
use serde_json::json;

fn accept_text(constraint: &mut dyn Constraint, text: &str) {
    text.bytes().for_each(|byte| constraint.accept(u32::from(byte)).unwrap());
}

#[test]
fn only_end_tokens_are_left_when_the_grammar_is_complete() {
    let mut constraint = compiler().compile(&Grammar::Lark("start: \"ab\"".to_owned())).unwrap();
    assert!(constraint.fork().accept(END[0]).unwrap_err().contains("not allow"));
    assert_eq!(allowed(constraint.as_mut()), [u32::from(b'a'), 256 + 11], "a, and the piece ab");
    accept_text(constraint.as_mut(), "ab");
    assert_eq!(allowed(constraint.as_mut()), END);
    constraint.accept(END[1]).unwrap();
    assert_eq!(allowed(constraint.as_mut()), END, "also after the end");
    assert!(constraint.accept(u32::from(b'a')).is_err());
}

#[test]
fn an_end_token_is_allowed_where_the_grammar_may_end() {
    let mut constraint = compiler().compile(&Grammar::Lark("start: /[0-9]+/".to_owned())).unwrap();
    assert!(!allowed(constraint.as_mut()).contains(&END[0]));
    accept_text(constraint.as_mut(), "7");
    assert!(allowed(constraint.as_mut()).contains(&END[0]) && allowed(constraint.as_mut()).contains(&END[1]));
    assert!(constraint.fork().accept(u32::from(b'x')).is_err());
    constraint.accept(END[1]).unwrap();
    assert_eq!(allowed(constraint.as_mut()), END);
}

#[test]
fn logits_beyond_the_vocabulary_become_impossible() {
    let mut constraint = compiler().compile(&Grammar::JsonObject).unwrap();
    let mut logits = vec![0.0; vocabulary().tokens.len() + 100];
    constraint.mask(&mut logits).unwrap();
    assert!(logits[vocabulary().tokens.len()..].iter().all(|logit| *logit == f32::NEG_INFINITY));
    assert!(constraint.mask(&mut [0.0; 3]).unwrap_err().contains("no token"), "{{ is not among three tokens");
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut constraint =
        compiler().compile(&Grammar::Lark("start: \"a\" \"b\" | \"a\" \"c\"".to_owned())).unwrap();
    accept_text(constraint.as_mut(), "a");
    let mut fork = constraint.fork();
    accept_text(fork.as_mut(), "b");
    assert_eq!(allowed(fork.as_mut()), END);
    assert_eq!(allowed(constraint.as_mut()), [u32::from(b'b'), u32::from(b'c')]);
    assert!(fork.accept(u32::from(b'c')).is_err());
    accept_text(constraint.as_mut(), "c");
}

#[test]
fn any_of_several_grammars_is_followed_to_its_end() {
    let call = Grammar::Lark("start: <[256]> \"{}\"".to_owned());
    let schema = Grammar::JsonSchema(json!({"const": {"a": 1}}));
    let numbers = Grammar::Gbnf("root ::= \"{\" [0-9] \"}\" [0-9]?".to_owned());
    let either = || compiler().compile_any(&[call.clone(), schema.clone(), numbers.clone()]).unwrap();
    assert_eq!(allowed(either().as_mut()), [u32::from(b'{'), CALL, 259], "the piece 259 begins with a brace");
    let mut called = either();
    called.accept(CALL).unwrap();
    assert_eq!(allowed(called.as_mut()), [u32::from(b'{')]);
    assert!(follows(called, "{}"));
    for text in [r#"{"a":1}"#, "{7}", "{7}8"] {
        assert!(follows(either(), text), "{text}");
    }
    for text in ["{}", r#"{"a":2}"#, "{7", "{78}", ""] {
        assert!(!follows(either(), text), "{text}");
    }
}

#[test]
fn a_text_that_only_some_of_the_grammars_end_with_may_end_or_go_on() {
    let grammar = |text: &str| Grammar::Lark(format!("start: \"{text}\""));
    let mut constraint = compiler().compile_any(&[grammar("a"), grammar("abc")]).unwrap();
    assert!(constraint.accept(u32::from(b'b')).unwrap_err().contains("not allow"));
    accept_text(constraint.as_mut(), "a");
    assert_eq!(allowed(constraint.as_mut()), [u32::from(b'b'), END[0], END[1]]);
    assert!(follows(constraint.fork(), "") && follows(constraint.fork(), "bc"));
    assert!(!follows(constraint, "b"));
    assert!(compiler().compile_any(&[]).is_err());
}

#[test]
fn a_triggered_constraint_is_idle_until_its_mark() {
    let grammar = Grammar::JsonSchema(json!({"const": {"a": 1}}));
    let mut constraint = compiler().compile_after("<call>", &grammar).unwrap();
    let everything = vocabulary().tokens.len();
    assert_eq!(allowed(constraint.as_mut()).len(), everything);
    accept_text(constraint.as_mut(), "Some text, <call");
    assert_eq!(allowed(constraint.as_mut()).len(), everything);
    let mut by_token = constraint.fork();
    accept_text(constraint.as_mut(), ">");
    by_token.accept(CALL).unwrap();
    for mut constraint in [constraint, by_token] {
        assert_eq!(
            allowed(constraint.as_mut()),
            [u32::from(b'{'), 259],
            "the brace, and the piece that begins with it"
        );
        assert!(follows(constraint, r#"{"a":1}"#));
    }
}

#[test]
fn an_end_token_ends_an_idle_constraint_too() {
    let mut constraint = compiler().compile_after("<call>", &Grammar::JsonObject).unwrap();
    constraint.accept(END[0]).unwrap();
    assert_eq!(allowed(constraint.as_mut()).len(), vocabulary().tokens.len());
}

#[test]
fn a_mark_is_a_number_if_it_is_a_control_token() {
    let compiler = compiler();
    assert_eq!(compiler.mark("<call>"), "<[256]>");
    assert_eq!(compiler.mark("\"x\"\n"), r#""\"x\"\n""#);
    let source = format!(
        "start: {} %json {{\"type\": \"integer\"}} {}",
        compiler.mark("<call>"),
        compiler.mark("</x>")
    );
    let mut constraint = compiler.compile(&Grammar::Lark(source)).unwrap();
    assert_eq!(allowed(constraint.as_mut()), [CALL], "a control token comes by name alone");
    constraint.accept(CALL).unwrap();
    assert!(follows(constraint, "12</x>"));
}

#[test]
fn text_never_allows_control_tokens() {
    let mut constraint = compiler().compile(&Grammar::Lark("start: /(?s:.*)/".to_owned())).unwrap();
    assert!(!allowed(constraint.as_mut()).contains(&CALL));
}

#[test]
fn equal_grammars_are_compiled_once_and_stay_apart() {
    let compiler = compiler();
    let grammar = Grammar::Lark("start: \"ab\"".to_owned());
    let mut first = compiler.compile(&grammar).unwrap();
    accept_text(first.as_mut(), "a");
    let mut second = compiler.compile(&grammar).unwrap();
    assert!(allowed(second.as_mut()).contains(&u32::from(b'a')));
    assert_eq!(allowed(first.as_mut()), [u32::from(b'b')]);
    for number in 0..100 {
        compiler.compile(&Grammar::Lark(format!("start: \"{number}\""))).unwrap();
    }
    assert!(follows(compiler.clone().compile(&grammar).unwrap(), "ab"), "also after it was dropped");
}

#[test]
fn the_order_of_properties_is_part_of_a_schema() {
    let compiler = compiler();
    let schema = |text: &str| Grammar::JsonSchema(serde_json::from_str(text).unwrap());
    let one = schema(r#"{"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}"#);
    let other = schema(r#"{"properties": {"b": {}, "a": {}}, "required": ["a", "b"]}"#);
    assert!(follows(compiler.compile(&one).unwrap(), r#"{"a":1,"b":2}"#));
    assert!(follows(compiler.compile(&other).unwrap(), r#"{"b":2,"a":1}"#));
}

#[test]
fn grammars_are_told_apart_by_how_they_define_rules() {
    assert_eq!(Grammar::from_text("root ::= \"a\""), Grammar::Gbnf("root ::= \"a\"".to_owned()));
    assert_eq!(Grammar::from_text("start: \"a\""), Grammar::Lark("start: \"a\"".to_owned()));
}

#[test]
fn a_vocabulary_that_can_not_be_used_is_refused() {
    let text = |bytes: &[u8]| TokenText::Bytes(bytes.to_vec());
    for vocabulary in [
        Vocabulary { tokens: vec![], end: vec![] },
        Vocabulary { tokens: vec![text(b"a")], end: vec![] },
        Vocabulary { tokens: vec![text(b"a")], end: vec![1] },
        Vocabulary {
            tokens: (0..70_000_u32).map(|number| text(&[number.to_le_bytes(); 20].concat())).collect(),
            end: vec![0],
        },
    ] {
        assert!(matches!(GrammarCompiler::new(vocabulary), Err(GrammarError::Vocabulary(_))));
    }
}

#[test]
fn tokens_that_no_text_has_are_never_allowed() {
    let mut tokens = vocabulary().tokens;
    let first = tokens.len() as u32;
    tokens.push(TokenText::Bytes(vec![]));
    tokens.push(TokenText::Bytes(vec![0xff, b'a']));
    tokens.push(TokenText::Bytes(vec![b'a'; 5000]));
    tokens.push(TokenText::Control("a".repeat(5000)));
    let count = tokens.len();
    let compiler = GrammarCompiler::new(Vocabulary { tokens, end: END.to_vec() }).unwrap();
    let mut constraint = compiler.compile(&Grammar::Lark("start: /(?s:.*)/".to_owned())).unwrap();
    let mut logits = vec![0.0; count];
    constraint.mask(&mut logits).unwrap();
    assert!(logits[first as usize..].iter().all(|logit| *logit == f32::NEG_INFINITY));
}

#[test]
fn a_grammar_that_no_text_follows_is_refused_when_it_is_compiled() {
    for grammar in
        [Grammar::Lark("start: a\na: b\nb: a".to_owned()), Grammar::Gbnf("root ::= root".to_owned())]
    {
        let refused = compiler().compile(&grammar).unwrap_err();
        assert_eq!(refused, GrammarError::Invalid { reason: "no text follows it".to_owned() });
    }
}

#[test]
fn a_token_that_the_vocabulary_lacks_is_an_error() {
    let tokens = vec![TokenText::Bytes(b"a".to_vec()), TokenText::Control("<end>".to_owned())];
    let compiler = GrammarCompiler::new(Vocabulary { tokens, end: vec![1] }).unwrap();
    let mut constraint = compiler.compile(&Grammar::Lark("start: \"a\" \"b\"".to_owned())).unwrap();
    constraint.accept(0).unwrap();
    assert!(constraint.mask(&mut [0.0; 2]).unwrap_err().contains("no token"));
    assert!(constraint.mask(&mut [0.0; 2]).unwrap_err().contains("no token"), "and stays one");
    assert!(constraint.accept(7).is_err());
}
