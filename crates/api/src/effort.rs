//! Named efforts of reasoning as budgets.

use crate::Reasoning;

/// Tokens of thinking that each effort allows; `None` sets no limit.
const BUDGETS: [(&str, Option<usize>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(128)),
    ("low", Some(512)),
    ("medium", Some(2048)),
    ("high", Some(8192)),
    ("xhigh", None),
    ("max", None),
];

impl Reasoning {
    /// The reasoning of a named effort, if there is one of that name.
    pub fn from_effort(effort: &str) -> Option<Self> {
        let (_, budget) = BUDGETS.iter().find(|(name, _)| *name == effort)?;
        Some(Self { budget: *budget, enabled: Some(*budget != Some(0)) })
    }

    /// The names of efforts.
    pub fn efforts() -> String {
        BUDGETS.map(|(name, _)| name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efforts_grow_and_none_is_no_thinking() {
        let budget = |name| Reasoning::from_effort(name).unwrap().budget;
        assert!(budget("low") < budget("medium") && budget("medium") < budget("high"));
        assert_eq!(Reasoning::from_effort("none").unwrap().enabled, Some(false));
        assert_eq!(Reasoning::from_effort("max").unwrap().budget, None);
        assert_eq!(Reasoning::from_effort("much"), None);
    }
}
