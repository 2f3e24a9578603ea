//! `lichen session`: conversations of a running node as files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lichen_backend::KvPrecision;
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
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

impl Transfer {
    fn url(&self, kv: Option<KvPrecision>) -> String {
        let model = self.model.as_deref().map(|model| format!("model={}", escaped(model)));
        let query: Vec<String> = model.into_iter().chain(kv.map(|kv| format!("kv={kv}"))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let (node, id) = (self.endpoint.trim_end_matches('/'), escaped(&self.session));
        format!("{node}/admin/sessions/{id}{mark}{}", query.join("&"))
    }

    fn authorization(&self) -> Option<String> {
        self.api_key.as_ref().map(|key| format!("Bearer {key}"))
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
        Action::Export(transfer) => export(&agent, transfer),
        Action::Import { transfer, kv } => import(&agent, transfer, *kv),
    }
}

fn export(agent: &Agent, transfer: &Transfer) -> Result<()> {
    let mut request = agent.get(transfer.url(None));
    if let Some(authorization) = transfer.authorization() {
        request = request.header("authorization", authorization);
    }
    let mut answer = checked(request.call().with_context(|| unreachable(transfer))?)?;
    // Whoever reads the file sees all of it or nothing.
    let part = part_of(&transfer.file);
    let mut file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let bytes = io::copy(&mut answer.body_mut().as_reader(), &mut file)
        .with_context(|| format!("cannot write {}", part.display()))?;
    file.flush()?;
    file.sync_all()?;
    fs::rename(&part, &transfer.file).with_context(|| format!("cannot write {}", transfer.file.display()))?;
    output::line(format_args!("{} in {}", output::bytes(bytes), transfer.file.display()))?;
    Ok(())
}

fn import(agent: &Agent, transfer: &Transfer, kv: Option<KvPrecision>) -> Result<()> {
    let file =
        File::open(&transfer.file).with_context(|| format!("cannot read {}", transfer.file.display()))?;
    let mut request = agent.put(transfer.url(kv)).header("content-type", "application/octet-stream");
    if let Some(authorization) = transfer.authorization() {
        request = request.header("authorization", authorization);
    }
    let mut answer = checked(request.send(file).with_context(|| unreachable(transfer))?)?;
    let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string()?)?;
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

fn unreachable(transfer: &Transfer) -> String {
    format!("no node answers at {}; start one with lichen serve, or give --endpoint", transfer.endpoint)
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
