//! Which idle replicas go when there is no room.

use crate::ReplicaId;
use std::time::Duration;

/// Bytes per second of a fast disk. A load measured as faster came from the page cache, which eviction may
/// well cost.
const STORAGE_SPEED: f64 = 4e9;
/// The price of a replica while another one of its name stays: requests are then slower, but none waits for a
/// load.
const EXTRA_REPLICA: f64 = 0.25;
/// Sets of candidates looked at in parallel. The choice is exact for up to ten candidates and near that
/// beyond.
const FRONT_MAX: usize = 1024;

/// An idle replica that may be evicted.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) id: ReplicaId,
    /// The model's name.
    pub(crate) name: String,
    /// Memory its eviction frees.
    pub(crate) bytes: u64,
    /// How long its load took.
    pub(crate) load_time: Duration,
    /// How long no request has used it.
    pub(crate) idle: Duration,
    /// Whether another ready replica of its name would stay.
    pub(crate) extra: bool,
}

impl Candidate {
    /// Seconds of load that its loss is expected to cost per second: the time to bring it back, times the
    /// chance that somebody asks for it, which falls with the time since somebody did.
    fn price(&self) -> f64 {
        let reload = self.load_time.as_secs_f64().max(self.bytes as f64 / STORAGE_SPEED);
        let recency = 1.0 / (1.0 + self.idle.as_secs_f64());
        reload * recency * if self.extra { EXTRA_REPLICA } else { 1.0 }
    }
}

#[derive(Clone)]
struct Set {
    price: f64,
    /// Bytes it frees, counted up to the need.
    freed: u64,
    members: Vec<ReplicaId>,
}

/// Candidates that free `need` bytes; `None` if all of them together do not. With an order of names the first of them,
/// else the cheapest set.
pub(crate) fn choose(candidates: &[Candidate], need: u64, order: &[String]) -> Option<Vec<ReplicaId>> {
    if order.is_empty() { cheapest(candidates, need) } else { first(candidates, need, order) }
}

fn first(candidates: &[Candidate], need: u64, order: &[String]) -> Option<Vec<ReplicaId>> {
    let (mut freed, mut chosen) = (0u64, Vec::new());
    let named = order.iter().flat_map(|name| candidates.iter().filter(move |one| one.name == *name));
    for candidate in named {
        if freed >= need {
            break;
        }
        if !chosen.contains(&candidate.id) {
            freed = freed.saturating_add(candidate.bytes);
            chosen.push(candidate.id);
        }
    }
    (freed >= need).then_some(chosen)
}

fn cheapest(candidates: &[Candidate], need: u64) -> Option<Vec<ReplicaId>> {
    let mut front = vec![Set { price: 0.0, freed: 0, members: Vec::new() }];
    for candidate in candidates {
        let price = candidate.price();
        let with: Vec<Set> = front
            .iter()
            .filter(|set| set.freed < need)
            .map(|set| Set {
                price: set.price + price,
                freed: set.freed.saturating_add(candidate.bytes).min(need),
                members: [&set.members[..], &[candidate.id]].concat(),
            })
            .collect();
        front.extend(with);
        front = undominated(front);
    }
    front.pop().filter(|set| set.freed >= need).map(|set| set.members)
}

/// Sets that no other one beats in both price and bytes, by rising price and bytes. The last frees the most;
/// it stays when the rest is thinned out, so that a set that frees enough is never lost.
fn undominated(mut sets: Vec<Set>) -> Vec<Set> {
    sets.sort_by(|a, b| a.price.total_cmp(&b.price).then(b.freed.cmp(&a.freed)));
    let mut most = None;
    sets.retain(|set| {
        let better = most.is_none_or(|most| set.freed > most);
        most = most.max(Some(set.freed));
        better
    });
    let (last, step) = (sets.len() - 1, sets.len().div_ceil(FRONT_MAX));
    sets.into_iter().enumerate().filter(|(at, _)| (last - at) % step == 0).map(|(_, set)| set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn idle_for(id: u64, bytes: u64, idle: u64) -> Candidate {
        Candidate {
            id: ReplicaId(id),
            name: id.to_string(),
            bytes,
            load_time: Duration::from_secs(10),
            idle: Duration::from_secs(idle),
            extra: false,
        }
    }

    fn ids(set: Option<Vec<ReplicaId>>) -> Option<Vec<u64>> {
        set.map(|set| set.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn the_least_recently_used_of_equals_goes() {
        assert_eq!(
            ids(cheapest(&[idle_for(1, 8, 5), idle_for(2, 8, 50), idle_for(3, 8, 20)], 8)),
            Some(vec![2])
        );
    }

    #[test]
    fn a_model_that_loads_quickly_goes_before_one_that_loads_slowly() {
        let slow = Candidate { load_time: Duration::from_secs(100), ..idle_for(1, 8, 50) };
        assert_eq!(ids(cheapest(&[slow, idle_for(2, 8, 20)], 8)), Some(vec![2]));
    }

    #[test]
    fn an_extra_replica_goes_before_a_last_one() {
        let extra = Candidate { extra: true, ..idle_for(1, 8, 20) };
        assert_eq!(ids(cheapest(&[idle_for(2, 8, 40), extra], 8)), Some(vec![1]));
    }

    #[test]
    fn one_large_model_goes_where_small_ones_do_not_free_enough() {
        assert_eq!(
            ids(cheapest(&[idle_for(1, 4, 90), idle_for(2, 16, 10), idle_for(3, 4, 90)], 9)),
            Some(vec![2])
        );
    }

    #[test]
    fn nothing_goes_if_all_together_do_not_free_enough() {
        assert_eq!(cheapest(&[idle_for(1, 8, 5), idle_for(2, 8, 50)], 17), None);
    }

    #[test]
    fn a_model_from_the_page_cache_is_priced_as_from_disk() {
        let large = Candidate { load_time: Duration::ZERO, ..idle_for(1, 80_000_000_000, 20) };
        assert_eq!(ids(cheapest(&[large, idle_for(2, 8, 20)], 8)), Some(vec![2]));
    }

    #[test]
    fn in_a_given_order_the_first_go_that_are_enough() {
        let candidates = [idle_for(1, 8, 5), idle_for(2, 8, 50), idle_for(3, 8, 20)];
        let named = |names: &[&str], need| {
            ids(choose(&candidates, need, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(named(&["3", "1", "3"], 8), Some(vec![3]));
        assert_eq!(named(&["3", "1", "3"], 16), Some(vec![3, 1]));
        assert_eq!(named(&["3", "gone"], 16), None);
        assert_eq!(named(&[], 8), Some(vec![2]));
    }

    fn candidates(most: usize) -> impl Strategy<Value = Vec<Candidate>> {
        let one = (1u64..100, 0u64..60, 0u64..600, any::<bool>());
        prop::collection::vec(one, 0..most).prop_map(|all| {
            let numbered = all.into_iter().enumerate();
            numbered
                .map(|(id, (bytes, load, idle, extra))| Candidate {
                    load_time: Duration::from_secs(load),
                    extra,
                    ..idle_for(id as u64, bytes, idle)
                })
                .collect()
        })
    }

    fn price(set: impl Iterator<Item = usize>, candidates: &[Candidate]) -> f64 {
        set.map(|at| candidates[at].price()).sum()
    }

    proptest! {
        #[test]
        fn no_set_that_frees_enough_is_cheaper(candidates in candidates(9), need in 1u64..300) {
            let subsets = (0..1usize << candidates.len())
                .map(|mask| (0..candidates.len()).filter(move |at| mask >> at & 1 == 1))
                .filter(|set| set.clone().map(|at| candidates[at].bytes).sum::<u64>() >= need);
            let best = subsets.map(|set| price(set, &candidates)).min_by(f64::total_cmp);
            let chosen = cheapest(&candidates, need)
                .map(|set| price(set.into_iter().map(|id| id.0 as usize), &candidates));
            prop_assert_eq!(best.is_some(), chosen.is_some());
            if let (Some(best), Some(chosen)) = (best, chosen) {
                prop_assert!((best - chosen).abs() <= 1e-9 * best.max(1.0), "{} instead of {}", chosen, best);
            }
        }

        #[test]
        fn many_candidates_free_enough_whenever_they_can(candidates in candidates(40), need in 1u64..3000) {
            let total: u64 = candidates.iter().map(|candidate| candidate.bytes).sum();
            let freed = cheapest(&candidates, need)
                .map(|set| set.iter().map(|id| candidates[id.0 as usize].bytes).sum::<u64>());
            prop_assert_eq!(freed.is_some(), total >= need);
            prop_assert!(freed.is_none_or(|freed| freed >= need));
        }
    }
}
