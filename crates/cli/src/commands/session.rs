//! `lichen session`: conversations that a running node keeps, also as files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lichen_backend::KvPrecision;
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the sessions that have state, by what requests call them
    List(Target),
    /// Give up the state of a session
    Drop {
        /// The `session_id` that requests use
        session: String,

        #[command(flatten)]
        target: Target,
    },
    /// Write the state of a session to a file
    Export(Transfer),
    /// Give a node the state of a session from a file, so that its next turn computes only what is new
    Import {
        #[command(flatten)]
        transfer: Transfer,

        /// Bring keys and values that are finer to this precision: q8, q5 or q4; coarser ones stay as they are
        #[arg(long, value_name = "PRECISION")]
        kv: Option<KvPrecision>,
    },
}

#[derive(Debug, clap::Args)]
struct Transfer {
    /// The `session_id` that requests use
    session: String,

    /// The file
    file: PathBuf,

    #[command(flatten)]
    target: Target,
}

/// Whom to ask.
#[derive(Debug, clap::Args)]
struct Target {
    /// The model's name; not needed if the node has only one
    #[arg(long)]
    model: Option<String>,

    /// Address of the node
    #[arg(long, env = "LICHEN_ENDPOINT", default_value = "http://127.0.0.1:8080")]
    endpoint: String,

    /// API key, if the node asks for one
    #[arg(long, env = "LICHEN_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl Target {
    /// Of all sessions, or of one.
    fn url(&self, session: Option<&str>, kv: Option<KvPrecision>) -> String {
        let model = self.model.as_deref().map(|model| format!("model={}", escaped(model)));
        let query: Vec<String> = model.into_iter().chain(kv.map(|kv| format!("kv={kv}"))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let session = session.map(|id| format!("/{}", escaped(id))).unwrap_or_default();
        let node = self.endpoint.trim_end_matches('/');
        format!("{node}/admin/sessions{session}{mark}{}", query.join("&"))
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.api_key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// The answer, or why there is none.
    fn answer(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>> {
        checked(answer.with_context(|| {
            format!("no node answers at {}; start one with lichen serve, or give --endpoint", self.endpoint)
        })?)
    }
}

/// All but letters, digits and a few signs as `%XX`.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let agent = Agent::new_with_config(Agent::config_builder().http_status_as_error(false).build());
    match &args.action {
        Action::List(target) => list(&agent, target),
        Action::Drop { session, target } => forget(&agent, session, target),
        Action::Export(transfer) => export(&agent, transfer),
        Action::Import { transfer, kv } => import(&agent, transfer, *kv),
    }
}

fn list(agent: &Agent, target: &Target) -> Result<()> {
    let request = target.authorized(agent.get(target.url(None, None)));
    let told = body(target.answer(request.call())?)?;
    let row = |session: &Value| {
        let text = |name: &str| session[name].as_str().unwrap_or("-").to_owned();
        let idle = session["idle_s"].as_f64().map_or("-".to_owned(), |idle| format!("{idle:.0} s idle"));
        let bytes = output::bytes(session["bytes"].as_u64().unwrap_or(0));
        [text("id"), text("model"), format!("{} tokens", session["tokens"]), bytes, idle]
    };
    let rows: Vec<_> = told["sessions"].as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        output::note("no session has state there");
    }
    output::text(&output::table(&rows))?;
    Ok(())
}

fn forget(agent: &Agent, session: &str, target: &Target) -> Result<()> {
    let request = target.authorized(agent.delete(target.url(Some(session), None)));
    let told = body(target.answer(request.call())?)?;
    let freed = output::bytes(told["freed_bytes"].as_u64().unwrap_or(0));
    output::line(format_args!("'{session}' is gone; {freed} are free"))?;
    Ok(())
}

fn export(agent: &Agent, Transfer { session, file: to, target }: &Transfer) -> Result<()> {
    let request = target.authorized(agent.get(target.url(Some(session), None)));
    let mut answer = target.answer(request.call())?;
    // Whoever reads the file sees all of it or nothing.
    let part = part_of(to);
    let mut file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let bytes = io::copy(&mut answer.body_mut().as_reader(), &mut file)
        .with_context(|| format!("cannot write {}", part.display()))?;
    file.flush()?;
    file.sync_all()?;
    fs::rename(&part, to).with_context(|| format!("cannot write {}", to.display()))?;
    output::line(format_args!("{} in {}", output::bytes(bytes), to.display()))?;
    Ok(())
}

fn import(agent: &Agent, transfer: &Transfer, kv: Option<KvPrecision>) -> Result<()> {
    let Transfer { session, file: from, target } = transfer;
    let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let request = agent.put(target.url(Some(session), kv)).header("content-type", "application/octet-stream");
    let answer = body(target.answer(target.authorized(request).send(file))?)?;
    let pages = answer["kv_pages"].as_object().into_iter().flatten();
    let pages: Vec<String> = pages.map(|(precision, pages)| format!("{pages} in {precision}")).collect();
    let tokens = &answer["tokens_reused"];
    output::line(format_args!("{tokens} tokens need not be computed again; pages: {}", pages.join(", ")))?;
    Ok(())
}

fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn body(mut answer: Response<Body>) -> Result<Value> {
    Ok(serde_json::from_str(&answer.body_mut().read_to_string()?)?)
}

/// The answer, or the node's own words of why not.
fn checked(mut answer: Response<Body>) -> Result<Response<Body>> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let body = answer.body_mut().read_to_string().unwrap_or_default();
    let told: Value = serde_json::from_str(&body).unwrap_or_default();
    match told["error"]["message"].as_str() {
        Some(message) => bail!("{message}"),
        None => bail!("the node answered {status}"),
    }
}
