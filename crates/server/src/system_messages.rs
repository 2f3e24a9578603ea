//! System messages where chat templates want them.
//!
//! Clients send several system messages, and some amid the conversation. Many templates know one only, as the first
//! message, and raise an exception on others or leave them out; some know none at all. No request fails for that and
//! nothing is dropped: of these forms of a conversation the first that the template takes is used.
//!
//! 1. All messages stay where they are; those at the beginning are one message, with an empty line between their texts,
//!    as models are trained on one.
//! 2. Those amid the conversation join the one at the beginning. They lose their place and keep wording, order and
//!    authority; as part of a user's message they would lose the authority, and the user could be thought to have
//!    said them. User messages that they stood between become one, since templates that are strict about system
//!    messages are strict about taking turns.
//! 3. All system text stands before the text of the first user message, since the template has no other place.

use serde_json::{Value, json};

use crate::Language;
use crate::language::Conversation;

/// Between texts that become one.
const BETWEEN: &str = "\n\n";

/// The prompt of a conversation, in the form that changes it least.
///
/// # Errors
/// The template's complaint about the conversation as it was sent, if it takes no form of it.
pub(crate) fn apply_template(
    language: &dyn Language,
    conversation: Conversation<'_>,
) -> Result<String, String> {
    let messages = conversation.messages.as_array().map_or(&[][..], Vec::as_slice);
    let apply = |messages: Vec<Value>| {
        language.apply_template(Conversation { messages: &Value::Array(messages), ..conversation })
    };
    let (first, rest) = messages.split_at(messages.iter().take_while(|message| is_system(message)).count());
    let later: Vec<&Value> = rest.iter().filter(|message| is_system(message)).collect();
    let in_place = apply(system_message(first).into_iter().chain(rest.iter().cloned()).collect());
    let complete = |prompt: &String| later.iter().all(|message| prompt.contains(content(message).trim()));
    if in_place.as_ref().is_ok_and(complete) || first.len() + later.len() == 0 {
        return in_place;
    }
    let all: Vec<Value> = first.iter().chain(later.iter().copied()).cloned().collect();
    let turns = turns(rest);
    let in_front = apply(system_message(&all).into_iter().chain(turns.clone()).collect());
    in_front.or_else(|_| in_place.or_else(|complaint| apply(within_user(&all, turns)).map_err(|_| complaint)))
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn content(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// Their texts one after another.
fn text(messages: &[Value]) -> String {
    messages.iter().map(content).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(BETWEEN)
}

/// Several system messages as one; nothing else of them counts for a template.
fn system_message(messages: &[Value]) -> Option<Value> {
    match messages {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(json!({"role": "system", "content": text(several)})),
    }
}

/// A conversation without system messages; user messages that only they kept apart are one.
fn turns(messages: &[Value]) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    let mut taken_out = false;
    for message in messages {
        if is_system(message) {
            taken_out = true;
            continue;
        }
        match turns.last_mut() {
            Some(last) if taken_out && last["role"] == "user" && message["role"] == "user" => {
                last["content"] = Value::String(text(&[last.clone(), message.clone()]));
            }
            _ => turns.push(message.clone()),
        }
        taken_out = false;
    }
    turns
}

/// The system text as the beginning of the first user message, or as the only one.
fn within_user(system: &[Value], mut turns: Vec<Value>) -> Vec<Value> {
    let mut said = system.to_vec();
    match turns.iter_mut().find(|message| message["role"] == "user") {
        Some(user) => {
            said.push(user.clone());
            user["content"] = Value::String(text(&said));
        }
        None => turns.insert(0, json!({"role": "user", "content": text(&said)})),
    }
    turns
}
