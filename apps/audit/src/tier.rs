//! Another tier for segments and cold files: a file system (`file:///PATH`) or S3 (`s3://BUCKET/PREFIX`).
//!
//! Each file NAME has an object NAME and a manifest NAME.json with length and SHA-256. The manifest is created first
//! and never replaced, so another content under the same name is refused. An interrupted copy is repeated. S3 takes
//! its endpoint and credentials from the environment (`AWS_*`). Memory: parts of 8 MiB, at most four at a time.

use crate::cli::Failure;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const PART_BYTES: usize = 8 << 20;
const PARTS_MAX: usize = 4;
/// Longest manifest in bytes.
const MANIFEST_BYTES_MAX: u64 = 4096;

/// A tier of storage.
pub(crate) struct Tier {
    url: String,
    store: Box<dyn ObjectStore>,
    prefix: Key,
    runtime: tokio::runtime::Runtime,
}

/// Content of the manifest beside an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    bytes: u64,
    sha256: String,
}

impl Tier {
    /// The tier at this URL, for the files of one Recorder.
    pub(crate) fn open(url: &str, recorder: &str) -> Result<Tier, Failure> {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::wrong(format!("tier: {url}: {error}; write file:///PATH or s3://BUCKET/PREFIX"))
        };
        let parsed = url::Url::parse(url).map_err(|error| wrong(&error))?;
        if !matches!(parsed.scheme(), "file" | "s3") {
            return Err(wrong(&"the scheme is not supported"));
        }
        if parsed.scheme() == "file" {
            let folder = parsed.to_file_path().map_err(|()| wrong(&"the path is not absolute"))?;
            std::fs::create_dir_all(&folder).map_err(|error| wrong(&error))?;
        }
        let environment = std::env::vars().filter(|(name, _)| name.starts_with("AWS_"));
        let options = environment.map(|(name, value)| (name.to_ascii_lowercase(), value));
        let (store, prefix) =
            object_store::parse_url_opts(&parsed, options).map_err(|error| wrong(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| wrong(&error))?;
        Ok(Tier { url: url.to_owned(), store, prefix: prefix.join(recorder), runtime })
    }

    /// The URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Copies a file to this name, unless the tier has it. `bytes` and `sha256` are those of the file.
    pub(crate) fn put(&self, name: &str, file: &Path, bytes: u64, sha256: &str) -> Result<(), Failure> {
        let manifest = Manifest { bytes, sha256: sha256.to_owned() };
        self.runtime.block_on(self.put_file(name, file, &manifest)).map_err(|error| {
            Failure::failed(format!(
                "tier: {}: cannot copy {}: {error}; nothing was deleted",
                self.url,
                file.display()
            ))
        })
    }

    async fn put_file(&self, name: &str, file: &Path, manifest: &Manifest) -> Result<(), String> {
        let text = |error: object_store::Error| error.to_string();
        let key = name.split('/').fold(self.prefix.clone(), |key, part| key.join(part));
        let manifest_key = Key::from(format!("{key}.json"));
        let content = serde_json::to_vec(manifest).map_err(|error| error.to_string())?;
        let create = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&manifest_key, PutPayload::from(content), create).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => {
                self.check_manifest(&manifest_key, manifest).await?
            }
            Err(error) => return Err(text(error)),
        }
        match self.store.head(&key).await {
            Ok(found) if found.size == manifest.bytes => return Ok(()),
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(text(error)),
        }
        let upload = self.store.put_multipart(&key).await.map_err(text)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut reader = File::open(file).map_err(|error| error.to_string())?;
        let mut buffer = vec![0; PART_BYTES];
        loop {
            match reader.read(&mut buffer).map_err(|error| error.to_string())? {
                0 => break,
                bytes => {
                    upload.wait_for_capacity(PARTS_MAX).await.map_err(text)?;
                    upload.write(&buffer[..bytes]);
                }
            }
        }
        upload.finish().await.map_err(text)?;
        let size = self.store.head(&key).await.map_err(text)?.size;
        if size == manifest.bytes { Ok(()) } else { Err(format!("the object has {size} bytes")) }
    }

    /// Checks that the manifest of the tier is that of the file.
    async fn check_manifest(&self, key: &Key, manifest: &Manifest) -> Result<(), String> {
        let text = |error: object_store::Error| error.to_string();
        if self.store.head(key).await.map_err(text)?.size > MANIFEST_BYTES_MAX {
            return Err("the manifest of the tier is too long".into());
        }
        let found = self.store.get(key).await.map_err(text)?.bytes().await.map_err(text)?;
        match serde_json::from_slice::<Manifest>(&found) {
            Ok(found) if found == *manifest => Ok(()),
            _ => Err(format!("the tier has another content under the name {key}")),
        }
    }
}
