//! GBNF grammars accept what they say and nothing else.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Random, compiler, follows, walk};
use lichen_constraint::{Grammar, GrammarError};

fn check(source: &str, accepted: &[&str], rejected: &[&str]) {
    let constraint = compiler().compile(&Grammar::from_text(source)).unwrap();
    for text in accepted {
        assert!(follows(constraint.fork(), text), "{text:?} should follow {source}");
    }
    for text in rejected {
        assert!(!follows(constraint.fork(), text), "{text:?} should not follow {source}");
    }
}

const ARITHMETIC: &str = r#"
# Sums and products.
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const LIST: &str = "root ::= item+\n\n# Excludes various line break characters\nitem ::= \"- \" \
    [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n";

const CHESS: &str = r#"
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?
# piece type, optional file/rank, optional capture, dest file & rank
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
# optional file & capture, dest file & rank, optional promotion
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"#;

#[test]
fn arithmetic() {
    check(
        ARITHMETIC,
        &["1+2=3\n", "( a*b ) /7 = x_1\n12=12\n", "((1))=1\n"],
        &["1+2=3", "1+=3\n", "(1=1\n", "1+2\n", "A=1\n"],
    );
}

#[test]
fn json() {
    check(
        JSON,
        &["{}", r#"{"a": [1, -2.5e+1, "x\u00e9\n"], "b": {"c": null}}"#, "{ \"a\":\n\ttrue}"],
        &["[]", "{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}", "{\"a\": 1,}"],
    );
}

#[test]
fn lists() {
    check(LIST, &["- a\n", "- one\n- two é\n"], &["", "- a", "- \n", "a\n", "- a\u{2028}\n", "- a\u{85}\n"]);
}

#[test]
fn chess() {
    check(
        CHESS,
        &["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O O-O-O+\n", "1. exd5 Qxd5\n2. e8=Q Nb1c3#\n"],
        &["1. e4 e5\n", "1. e9 e5\n2. a1 a2\n", "1. e4\n2. e4 e5\n", "1. O-O-O-O e5\n2. e4 e5\n"],
    );
}

#[test]
fn a_rule_that_is_not_recursive_is_not_cut_greedily() {
    check(
        "root ::= [a-z]* \"end\" | \"a\" \"bc\" | \"ab\" \"d\"",
        &["end", "endend", "abc", "abd"],
        &["en", "abcd"],
    );
}

#[test]
fn repetitions_classes_escapes_and_lines() {
    check(
        "root ::= (\"ab\"{2} | \"c\"{1,} | \"d\"{0,2} \"!\" | \"e\"{0}) rest\n\
         rest ::= [\\]\\x41-\\x43^\\-] .\n  | \"\\U0001F600\"\n  | \"\\\"\\\\\\t\"",
        &["ababA\n", "ccc]x", "dd!^é", "!-y", "\u{1F600}", "c\"\\\t"],
        &["abA1", "ddd!A1", "eA1", "cD1", "cA"],
    );
    check(
        "root ::= left-Hand_2 # same line\nleft-Hand_2 ::= \"x\" left-Hand_2 \"y\" | \"\"",
        &["", "xxyy"],
        &["xxy"],
    );
}

#[test]
fn left_recursion_is_fine() {
    check("root ::= root \"+\" [0-9]+ | [0-9]+", &["1", "1+22+3"], &["+1", "1+", ""]);
}

#[test]
fn every_walk_follows_the_grammar() {
    let compiler = compiler();
    for source in [ARITHMETIC, JSON, LIST, CHESS] {
        let constraint = compiler.compile(&Grammar::from_text(source)).unwrap();
        let finished = (0..40).filter_map(|seed| walk(constraint.fork().as_mut(), &mut Random(seed)));
        let finished =
            finished.map(|text| assert!(follows(constraint.fork(), &text), "{text:?} of {source}")).count();
        assert!(finished > 0, "{source}");
    }
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (source, line, words) in [
        ("root ::= \"a\"\nb ::= (\"x\"\n", "line 3", "a group has no end"),
        ("root ::= \"a", "line 1", "ends too early"),
        ("\nroot ::= *", "line 2", "nothing to repeat"),
        ("root ::= \"a\"**", "line 1", "nothing to repeat"),
        ("root ::= [z-a]", "line 1", "z-a"),
        ("root ::= \"\\q\"", "line 1", "\\q"),
        ("root ::= \"a\"{3,2}", "line 1", "{3,2}"),
        ("root ::= \"a\" )", "line 1", ")"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2", "twice"),
        ("root ::= \"a\"\n= \"b\"", "line 2", "name is missing"),
        ("root ::= missing", "", "missing"),
        ("start ::= \"a\"", "", "root"),
    ] {
        let refused = compiler().compile(&Grammar::from_text(source)).unwrap_err();
        assert!(matches!(refused, GrammarError::Invalid { .. }), "{source}: {refused}");
        let message = refused.to_string();
        assert!(message.contains(line) && message.contains(words), "{source}: {message}");
    }
    let refused = compiler().compile(&Grammar::from_text("root ::= <think>")).unwrap_err();
    assert!(matches!(refused, GrammarError::Unsupported { .. }));
}
