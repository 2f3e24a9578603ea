//! The models of the whole fleet, as clients list them.

use std::collections::BTreeMap;

use lichen_api::ModelCard;
use lichen_contract::{ModelState, ModelStatus};
use serde_json::{Value, json};

use crate::Gateway;

/// One card for each name that a request may use: the models of the catalogue, those that nodes have, and aliases.
pub(crate) fn cards(gateway: &Gateway) -> Vec<ModelCard> {
    let mut cards: BTreeMap<String, ModelCard> = BTreeMap::new();
    for model in gateway.0.catalogue.models() {
        cards.insert(model.name().to_owned(), ModelCard::absent(model.name(), model.bytes()));
    }
    gateway.members(|now, members| {
        for node in members.up(now) {
            let models = node.report().into_iter().flat_map(|report| &report.models);
            for card in models.filter_map(|status| card(status, node.in_flight(&status.id))) {
                match cards.get_mut(&card.id) {
                    Some(known) => known.join(card),
                    None => {
                        cards.insert(card.id.clone(), card);
                    }
                }
            }
        }
    });
    for model in gateway.0.catalogue.models() {
        let Some(card) = cards.get(model.name()).cloned() else { continue };
        for alias in model.aliases.iter().filter(|alias| !alias.contains('*')) {
            cards.insert(alias.clone(), ModelCard { id: alias.clone(), ..card.clone() });
        }
    }
    cards.into_values().collect()
}

fn card(status: &ModelStatus, in_flight: u32) -> Option<ModelCard> {
    let (state, progress, failure) = match &status.state {
        ModelState::Absent => ("absent", 0.0, None),
        ModelState::Staging { progress, .. } | ModelState::Loading { progress, .. } => {
            ("loading", *progress, None)
        }
        ModelState::Ready => ("ready", 1.0, None),
        ModelState::Draining => ("draining", 1.0, None),
        ModelState::Failed { cause } => ("failed", 0.0, Some(cause.clone())),
        ModelState::Unknown => return None,
    };
    let present = usize::from(state == "ready");
    Some(ModelCard {
        state,
        progress,
        failure,
        in_flight: in_flight as usize,
        context_cap: status.context_cap.map(|cap| cap as usize),
        replicas: present,
        ..ModelCard::absent(&status.id, status.bytes)
    })
}

/// A model as Anthropic's API describes it.
pub(crate) fn anthropic(card: &ModelCard) -> Value {
    let all = card.json();
    json!({"type": "model", "id": all["id"], "display_name": all["display_name"], "created_at": all["created_at"]})
}

/// The list as Anthropic's API has it; `all` is how many there are.
pub(crate) fn anthropic_list(cards: &[ModelCard], all: usize) -> Value {
    json!({
        "data": cards.iter().map(anthropic).collect::<Vec<_>>(),
        "has_more": cards.len() < all,
        "first_id": cards.first().map(|card| &card.id),
        "last_id": cards.last().map(|card| &card.id),
    })
}
