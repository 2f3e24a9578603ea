//! What is admitted, and whether the numbers of a refusal are true.

use lichen_memory::{
    KvPrecision, Level, LoadVerdict, ModelBytes, Residency, Slots, Standing, Turn, TurnVerdict, admit_load,
    admit_turn,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const FREE: Slots = Slots { running: 0, target: 4 };

/// The bytes of Qwen2.5-0.5B: 24 layers with 2 KV heads of 64.
fn qwen() -> ModelBytes {
    ModelBytes {
        page: [512, 272, 160, 144].map(|head| 64 * 24 * head),
        page_tokens: 64,
        fine_pages: 1,
        floor: KvPrecision::Q4,
        context_cap: 32_768,
        scratch: 29 * MIB,
        weights_mapped: 469 * MIB,
        weights_anonymous: 0,
        tokenizer: 0,
    }
}

/// A control group of so many MiB with the model loaded.
fn standing(limit: u64) -> Standing {
    let limit = limit * MIB;
    Standing {
        limit,
        ceiling: limit,
        margin: lichen_memory::margin(limit),
        committed: 40 * MIB + 469 * MIB + 29 * MIB,
        permanent: 40 * MIB + 469 * MIB + 29 * MIB,
        level: Level::Normal,
    }
}

fn turn(prompt_tokens: u64, max_tokens: Option<u64>) -> Turn {
    Turn { prompt_tokens, shared_tokens: 0, max_tokens, default_tokens: 4096 }
}

#[test]
fn kv_of_a_known_model() {
    let model = qwen();
    let per_token = KvPrecision::ALL.map(|precision| model.bytes_per_token(precision));
    assert_eq!(per_token, [12_288, 6_528, 3_840, 3_456]);
    assert_eq!(model.kv_bytes(32_768, KvPrecision::F16), 384 * MIB);
    assert_eq!(model.kv_bytes(8_192, KvPrecision::Q4), 27 * MIB);
    assert_eq!(model.stationary(Residency::Resident), 498 * MIB);
}

#[test]
fn kv_is_counted_in_whole_pages() {
    let pages = |tokens| qwen().kv_bytes(tokens, KvPrecision::Q4) / (64 * 3_456);
    assert_eq!([0, 1, 63, 64, 65].map(pages), [0, 1, 1, 1, 2]);
}

#[test]
fn pages_that_stay_open_are_promised_at_full_precision() {
    let model = ModelBytes { fine_pages: 3, ..qwen() };
    let surplus = |tokens| (model.turn_bytes(tokens, 0, 0) - model.kv_bytes(tokens, KvPrecision::Q4)) / 64;
    let of = |pages: u64| pages * (12_288 - 3_456);
    assert_eq!([0, 1, 128, 8_000].map(surplus), [0, of(1), of(2), of(3)]);
}

#[test]
fn a_turn_is_promised_its_longest_answer_at_the_smallest_precision() {
    let verdict = admit_turn(&qwen(), turn(1000, Some(24)), FREE, &standing(1000));
    let reserve = 1024 * 3_456 + 64 * (12_288 - 3_456);
    assert_eq!(verdict, TurnVerdict::Admit { reserve, max_tokens: 24 });
}

#[test]
fn four_turns_of_8k_fit_700_mib_and_a_fifth_waits() {
    let mut standing = standing(700);
    for _ in 0..4 {
        let verdict = admit_turn(&qwen(), turn(8_000, Some(192)), FREE, &standing);
        let TurnVerdict::Admit { reserve, .. } = verdict else { panic!("{verdict:?}") };
        standing.committed += reserve;
    }
    let verdict = admit_turn(&qwen(), turn(8_000, Some(192)), FREE, &standing);
    assert!(matches!(verdict, TurnVerdict::Queue { for_slot: false, .. }), "{verdict:?}");
}

#[test]
fn without_a_free_slot_it_waits_for_one() {
    let verdict = admit_turn(&qwen(), turn(10, Some(10)), Slots { running: 2, target: 2 }, &standing(1000));
    assert!(matches!(verdict, TurnVerdict::Queue { for_slot: true, .. }), "{verdict:?}");
}

#[test]
fn pinned_pages_are_not_promised_twice() {
    let shared = Turn { shared_tokens: 8_010, ..turn(8_100, Some(92)) };
    let TurnVerdict::Admit { reserve, .. } = admit_turn(&qwen(), shared, FREE, &standing(1000)) else {
        panic!()
    };
    assert_eq!(reserve, qwen().turn_bytes(8_100 - 8_000, 0, 92));
}

#[test]
fn an_answer_of_no_given_length_is_as_long_as_the_context_allows() {
    let verdict = admit_turn(&qwen(), turn(32_000, None), FREE, &standing(1000));
    assert!(matches!(verdict, TurnVerdict::Admit { max_tokens: 768, .. }), "{verdict:?}");
}

#[test]
fn more_than_the_context_is_refused_and_nothing_is_cut() {
    for (prompt, answer) in
        [(32_000, Some(769)), (32_769, Some(0)), (32_768, None), (u64::MAX, Some(u64::MAX))]
    {
        let verdict = admit_turn(&qwen(), turn(prompt, answer), FREE, &standing(1000));
        assert!(matches!(verdict, TurnVerdict::Refuse(_)), "{verdict:?}");
    }
}

#[test]
fn a_prompt_that_wants_no_answer_may_fill_the_context() {
    let verdict = admit_turn(&qwen(), turn(32_768, Some(0)), FREE, &standing(1000));
    assert!(matches!(verdict, TurnVerdict::Admit { max_tokens: 0, .. }), "{verdict:?}");
}

#[test]
fn what_fits_only_alone_waits_and_what_fits_not_even_alone_is_refused_with_numbers() {
    let mut standing = standing(600);
    standing.committed = standing.limit;
    let verdict = admit_turn(&qwen(), turn(5_000, Some(100)), FREE, &standing);
    assert!(matches!(verdict, TurnVerdict::Queue { available: 0, .. }), "{verdict:?}");
    let TurnVerdict::Refuse(refusal) = admit_turn(&qwen(), turn(30_000, Some(100)), FREE, &standing) else {
        panic!()
    };
    assert_eq!((refusal.max_prompt_tokens_now, refusal.context_cap), (0, 32_768));
    assert!((6_000..8_000).contains(&refusal.max_prompt_tokens_alone), "{refusal:?}");
    assert!(!refusal.exceeds_context() && refusal.kv_bytes_needed > refusal.kv_bytes_alone);
    assert_eq!(refusal.max_answer_tokens_alone, 0, "the prompt alone is too large");
}

#[test]
fn a_model_is_loaded_where_it_fits_and_waits_or_is_refused_where_it_does_not() {
    let unloaded = |limit| Standing { committed: 40 * MIB, permanent: 40 * MIB, ..standing(limit) };
    let empty = unloaded(700);
    let load = |standing: &Standing, floors, context| {
        admit_load(&qwen(), Residency::Resident, context, floors, standing)
    };
    assert!(matches!(load(&empty, (0, 0), 8_192), LoadVerdict::Admit { .. }));
    let verdict = load(&empty, (200 * MIB, 150 * MIB), 8_192);
    let LoadVerdict::Queue { unload, need, available } = verdict else { panic!("{verdict:?}") };
    assert_eq!(unload, need - available);
    let small = unloaded(500);
    let LoadVerdict::Refuse(refusal) = load(&small, (0, 0), 8_192) else { panic!() };
    assert_eq!(refusal.max_context, 0);
    let streamed = admit_load(&qwen(), Residency::Streamed, 8_192, (0, 0), &small);
    assert!(matches!(streamed, LoadVerdict::Admit { .. }), "{streamed:?}");
}

fn models() -> impl Strategy<Value = ModelBytes> {
    (0u64..40_000, 0u64..70, 0u64..4, 0u64..9000).prop_map(|(bytes, page_tokens, fine_pages, context_cap)| {
        ModelBytes {
            page: [bytes * 4, bytes * 2, bytes + 1, bytes],
            page_tokens,
            fine_pages,
            context_cap,
            scratch: MIB,
            weights_mapped: 30 * MIB,
            ..qwen()
        }
    })
}

fn standings() -> impl Strategy<Value = Standing> {
    (30u64..120, 0u64..120, 0u64..100).prop_map(|(limit, ceiling, committed)| Standing {
        ceiling: ceiling.min(limit) * MIB,
        margin: 2 * MIB,
        committed: (35 + committed) * MIB,
        permanent: 32 * MIB,
        ..standing(limit)
    })
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..9000, 1 => Just(u64::MAX)]
}

proptest! {
    #[test]
    fn a_refused_turn_is_admitted_with_the_numbers_it_was_given(
        model in models(),
        prompt in sizes(),
        shared in sizes(),
        answer in prop::option::of(sizes()),
        running in 0usize..3,
        standing in standings(),
    ) {
        let slots = Slots { running, target: 2 };
        let turn =
            Turn { prompt_tokens: prompt, shared_tokens: shared, max_tokens: answer, default_tokens: 500 };
        let TurnVerdict::Refuse(refusal) = admit_turn(&model, turn, slots, &standing) else { return Ok(()) };
        prop_assert!(refusal.max_prompt_tokens_now <= refusal.max_prompt_tokens_alone);
        prop_assert!(refusal.max_prompt_tokens_alone <= refusal.context_cap);
        prop_assert!(prompt == 0 || prompt > refusal.max_prompt_tokens_alone);
        if refusal.max_answer_tokens_alone > 0 {
            let turn = Turn { max_tokens: Some(refusal.max_answer_tokens_alone), ..turn };
            let verdict = admit_turn(&model, turn, slots, &standing);
            prop_assert!(!matches!(verdict, TurnVerdict::Refuse(_)), "{:?} {:?}", verdict, refusal);
        }
        let again = |prompt_tokens| {
            let turn = Turn { prompt_tokens, shared_tokens: 0, ..turn };
            admit_turn(&model, turn, slots, &standing)
        };
        if refusal.max_prompt_tokens_now > 0 {
            let verdict = again(refusal.max_prompt_tokens_now);
            prop_assert!(matches!(verdict, TurnVerdict::Admit { .. }), "{:?} {:?}", verdict, refusal);
        }
        if refusal.max_prompt_tokens_alone > 0 {
            prop_assert!(!matches!(again(refusal.max_prompt_tokens_alone), TurnVerdict::Refuse(_)));
        }
        prop_assert!(matches!(again(refusal.max_prompt_tokens_alone + 1), TurnVerdict::Refuse(_)));
    }

    #[test]
    fn an_admitted_turn_has_room(
        model in models(),
        prompt in 0u64..9000,
        answer in prop::option::of(0u64..900),
        standing in standings(),
    ) {
        let turn = Turn { prompt_tokens: prompt, shared_tokens: 0, max_tokens: answer, default_tokens: 500 };
        if let TurnVerdict::Admit { reserve, max_tokens } = admit_turn(&model, turn, FREE, &standing) {
            prop_assert!(standing.committed + reserve + standing.margin <= standing.ceiling);
            prop_assert!(prompt + max_tokens <= model.context_cap);
            prop_assert!(answer.is_none_or(|answer| answer == max_tokens), "nothing is cut");
        }
    }

    #[test]
    fn a_refused_load_is_not_refused_with_the_context_it_was_given(
        model in models(), context in sizes(), standing in standings(),
    ) {
        let load = |context| admit_load(&model, Residency::Resident, context, (0, 0), &standing);
        let LoadVerdict::Refuse(refusal) = load(context) else { return Ok(()) };
        if refusal.max_context > 0 {
            prop_assert!(!matches!(load(refusal.max_context), LoadVerdict::Refuse(_)));
        }
        prop_assert!(matches!(load(refusal.max_context + 1), LoadVerdict::Refuse(_)));
    }
}
