//! The models of `lichen serve` and the options that each of them has: what follows a `--model` is for that model, what
//! comes before the first is for all.

use std::num::{NonZeroU32, NonZeroUsize};

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use lichen_hub::Reference;
use lichen_server::ModelOptions;

#[derive(Debug, clap::Args)]
struct Flags {
    /// Model to serve: a path, a name from the catalogue or a reference; may be given several times. Options that
    /// follow it are for it alone, options before the first are for all. Without any, models are loaded over HTTP
    #[arg(short, long = "model", env = "LICHEN_MODEL", value_name = "REF")]
    model: Vec<Reference>,

    /// Name of the model in requests; the file's stem if not given. The same name again makes a replica
    #[arg(long, env = "LICHEN_NAME", value_name = "NAME")]
    name: Vec<String>,

    /// Most tokens of prompt and answer together; the model's own limit if not given
    #[arg(long, env = "LICHEN_CTX_CAP", value_name = "TOKENS")]
    ctx_cap: Vec<NonZeroU32>,

    /// Most sessions whose state is kept in preference to that of requests without a session [default: 64]
    #[arg(long, env = "LICHEN_MAX_SESSIONS", value_name = "N")]
    max_sessions: Vec<usize>,

    /// Most requests that run at once; others wait [default: 8]
    #[arg(long, env = "LICHEN_MAX_CONCURRENT", value_name = "N")]
    max_concurrent: Vec<NonZeroUsize>,

    /// Most tokens of thinking, where a request doesn't say
    #[arg(long, env = "LICHEN_REASONING_BUDGET", value_name = "TOKENS")]
    reasoning_budget: Vec<usize>,

    /// Seconds without a request after which the model is unloaded
    #[arg(long, env = "LICHEN_TTL", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    ttl: Vec<u64>,

    /// Never unload the model to make room or because memory is short
    #[arg(long, env = "LICHEN_PIN", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "true|false")]
    pin: Vec<bool>,
}

/// One model as the command line asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) reference: Reference,
    pub(crate) name: Option<String>,
    pub(crate) options: ModelOptions,
    pub(crate) ttl: Option<u64>,
    pub(crate) pinned: bool,
}

/// The models of the command line.
#[derive(Debug)]
pub(crate) struct ModelArgs {
    models: Vec<Wanted>,
    /// A name before the first `--model`, where there are several.
    stray_name: bool,
}

impl ModelArgs {
    /// The models in order.
    ///
    /// # Errors
    /// One name is meant for several models.
    pub(crate) fn wanted(&self) -> Result<Vec<Wanted>> {
        if self.stray_name {
            bail!(
                "a --name before several models would make them replicas of one; put each --name after its --model"
            );
        }
        Ok(self.models.clone())
    }
}

impl clap::Args for ModelArgs {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

impl FromArgMatches for ModelArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Flags { model, name, ctx_cap, max_sessions, max_concurrent, reasoning_budget, ttl, pin } =
            Flags::from_arg_matches(matches)?;
        let places = Places::of(matches, model.len());
        let (names, ctx_caps) = (places.assign("name", &name), places.assign("ctx_cap", &ctx_cap));
        let sessions = places.assign("max_sessions", &max_sessions);
        let concurrent = places.assign("max_concurrent", &max_concurrent);
        let budgets = places.assign("reasoning_budget", &reasoning_budget);
        let ttls = places.assign("ttl", &ttl);
        let pins = places.assign("pin", &pin);
        let stray_name = model.len() > 1 && places.has_default("name");
        let models = model.into_iter().enumerate().map(|(index, reference)| Wanted {
            reference,
            name: names[index].clone(),
            options: ModelOptions {
                ctx_cap: ctx_caps[index].map(NonZeroU32::get),
                max_sessions: sessions[index],
                max_concurrent: concurrent[index].map(NonZeroUsize::get),
                reasoning_budget: budgets[index],
            },
            ttl: ttls[index],
            pinned: pins[index].unwrap_or(false),
        });
        Ok(Self { models: models.collect(), stray_name })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Where the models stand on the command line.
struct Places<'a> {
    matches: &'a ArgMatches,
    models: Vec<usize>,
}

impl<'a> Places<'a> {
    fn of(matches: &'a ArgMatches, count: usize) -> Self {
        let models = if matches.value_source("model") == Some(ValueSource::CommandLine) {
            matches.indices_of("model").into_iter().flatten().collect()
        } else {
            // From the environment: everything on the command line is for it.
            vec![usize::MAX; count]
        };
        Self { matches, models }
    }

    /// The model that each value of an option belongs to; `None` is all.
    fn owners(&self, option: &str) -> Vec<Option<usize>> {
        if self.matches.value_source(option) != Some(ValueSource::CommandLine) {
            return vec![None; self.matches.indices_of(option).into_iter().flatten().count()];
        }
        let indices = self.matches.indices_of(option).into_iter().flatten();
        indices.map(|index| self.models.iter().rposition(|model| *model < index)).collect()
    }

    fn has_default(&self, option: &str) -> bool {
        self.owners(option).contains(&None)
    }

    /// The value of an option for each model; the last one counts.
    fn assign<T: Clone>(&self, option: &str, values: &[T]) -> Vec<Option<T>> {
        let owners = self.owners(option);
        (0..self.models.len())
            .map(|model| {
                let of = |owner: Option<usize>| {
                    let mut pairs = owners.iter().zip(values).rev();
                    pairs.find(|(place, _)| **place == owner).map(|(_, value)| value.clone())
                };
                of(Some(model)).or_else(|| of(None))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        models: ModelArgs,
    }

    fn wanted(line: &str) -> Result<Vec<Wanted>> {
        Line::parse_from(std::iter::once("x").chain(line.split(' '))).models.wanted()
    }

    #[test]
    fn options_after_a_model_are_for_it_and_options_before_for_all() {
        let models = wanted(
            "--ctx-cap 512 -m ./a.gguf --name a --ttl 5 -m ./b.gguf --ctx-cap 1024 --max-concurrent 2 --pin -m ./a.gguf --name a",
        )
        .unwrap();
        let caps: Vec<_> = models.iter().map(|model| model.options.ctx_cap).collect();
        assert_eq!(caps, [Some(512), Some(1024), Some(512)]);
        let names: Vec<_> = models.iter().map(|model| model.name.as_deref()).collect();
        assert_eq!(names, [Some("a"), None, Some("a")]);
        assert_eq!((models[0].ttl, models[1].ttl), (Some(5), None));
        assert_eq!(models.iter().map(|model| model.pinned).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!((models[1].options.max_concurrent, models[2].options.max_concurrent), (Some(2), None));
    }

    #[test]
    fn a_name_for_several_models_is_refused() {
        assert!(wanted("--name x -m ./a.gguf -m ./b.gguf").is_err());
        assert_eq!(wanted("--name x -m ./a.gguf").unwrap()[0].name.as_deref(), Some("x"));
    }
}
