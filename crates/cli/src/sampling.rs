//! The options that say how an answer is made. Defaults are those of llama.cpp, and its older repeat penalty of 1.1.

use lichen_generate::{Request, Sampling};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens of the answer; up to the context cap if not given
    #[arg(short = 'n', long, env = "LICHEN_MAX_TOKENS", value_name = "TOKENS")]
    max_tokens: Option<usize>,

    /// Randomness; 0 takes the most likely token each time
    #[arg(long, env = "LICHEN_TEMPERATURE", default_value_t = 0.8, value_parser = not_negative)]
    temperature: f32,

    /// Choose among that many most likely tokens; 0 is off
    #[arg(long, env = "LICHEN_TOP_K", default_value_t = 40, value_name = "K")]
    top_k: usize,

    /// Choose among the most likely tokens that together have this probability; 1 is off
    #[arg(long, env = "LICHEN_TOP_P", default_value_t = 0.95, value_name = "P", value_parser = share)]
    top_p: f32,

    /// Leave out tokens less likely than this share of the most likely one; 0 is off
    #[arg(long, env = "LICHEN_MIN_P", default_value_t = 0.05, value_name = "P", value_parser = share)]
    min_p: f32,

    /// Make the last 64 tokens less likely to come again; 1 is off
    #[arg(long, env = "LICHEN_REPEAT_PENALTY", default_value_t = 1.1, value_name = "X", value_parser = positive)]
    repeat_penalty: f32,

    /// Seed of the random numbers; the same seed gives the same answer
    #[arg(long, env = "LICHEN_SEED", value_name = "N")]
    seed: Option<u64>,

    /// Text that ends the answer and is not part of it; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SamplingArgs {
    /// The request for a prompt.
    pub(crate) fn request(&self, prompt: Vec<u32>) -> Request {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            seed: self.seed,
            ..Sampling::default()
        };
        Request {
            prompt,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            sampling,
            ..Request::default()
        }
    }
}

fn number(text: &str, fits: impl Fn(f32) -> bool, rule: &str) -> Result<f32, String> {
    text.parse().ok().filter(|&value: &f32| value.is_finite() && fits(value)).ok_or_else(|| rule.to_owned())
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |value| value >= 0.0, "give a number from 0 up")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0, "give a number above 0")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "give a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_are_refused_with_the_rule() {
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("1.5").unwrap_err().contains("0 to 1"));
        assert!(not_negative("nan").is_err());
        assert!(positive("0").is_err());
    }
}
