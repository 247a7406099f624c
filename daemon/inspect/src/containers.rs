//! The image that a container was made of, as its engine's own files say. They belong to root.

use nix::fcntl::OFlag;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use profiledb::Container;

/// Most bytes read of one file. A list of thousands of containers is shorter; a longer file counts
/// as unreadable, and its containers have no image.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Hexadecimal digits of a container's id. All engines below use ids of this length.
const ID_DIGITS: usize = 64;

/// A container as Docker describes it (`Container` in daemon/container/container.go, Moby 20.10
/// to 27).
#[derive(Deserialize)]
struct Docker {
    #[serde(rename = "Config")]
    config: DockerConfig,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(rename = "Image")]
    image: String,
}

/// An entry of `containers.json`, the list that the library containers/storage (1.43) keeps for
/// Podman and CRI-O.
#[derive(Deserialize)]
struct Stored {
    id: String,
    /// JSON of the engine, as text.
    #[serde(default)]
    metadata: String,
}

#[derive(Deserialize)]
struct StoredMetadata {
    #[serde(rename = "image-name")]
    image: String,
    /// CRI-O's (internal/storage/runtime.go, 1.20 to 1.31): `k8s_POD_NAMESPACE_UID_ATTEMPT`.
    #[serde(default, rename = "pod-name")]
    pod: String,
}

/// What an engine's files say of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    image: Option<String>,
    /// `NAMESPACE/POD`.
    pod: Option<String>,
}

impl Told {
    fn of_image(image: String) -> Self {
        Self { image: Some(image), pod: None }
    }

    /// The words behind the container's name in a unit's ([`profiledb::Container`]).
    fn words(self) -> Option<String> {
        let pod = self.pod.map(|pod| format!("{}{pod}", Container::POD));
        let word = |text: String| text.replace(' ', "\\x20");
        let words: Vec<String> = [pod, self.image].into_iter().flatten().map(word).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// A container's configuration for its runtime (config.md of the OCI runtime specification).
#[derive(Deserialize)]
struct Runtime {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The pod of the container `id`, `pod:NAMESPACE/POD`, and the name of the image from which it was
/// made, as far as they are known. A Kubernetes sandbox has no image of interest. `None`: no
/// engine's files in their default folders below `root` (`/`, but in tests) tell of it.
pub fn image_of(root: &Path, id: &str) -> Option<String> {
    // The id becomes a part of a path.
    if id.len() != ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    docker(root, id).or_else(|| stored(root, id)).or_else(|| runtime(root, id))?.words()
}

fn docker(root: &Path, id: &str) -> Option<Told> {
    let file = format!("var/lib/docker/containers/{id}/config.v2.json");
    read::<Docker>(&root.join(file)).map(|docker| Told::of_image(docker.config.image))
}

fn stored(root: &Path, id: &str) -> Option<Told> {
    ["overlay", "vfs", "btrfs", "zfs"].iter().find_map(|driver| {
        let file = format!("var/lib/containers/storage/{driver}-containers/containers.json");
        let all: Vec<Stored> = read(&root.join(file))?;
        let found = all.into_iter().find(|stored| stored.id == id)?;
        let data: StoredMetadata = serde_json::from_str(&found.metadata).ok()?;
        let mut words = data.pod.strip_prefix("k8s_").unwrap_or_default().split('_');
        let pod = words.next().zip(words.next());
        let pod = pod.map(|(pod, namespace)| format!("{namespace}/{pod}"));
        Some(Told { pod, ..Told::of_image(data.image) })
    })
}

/// containerd's annotations (internal/cri/annotations/annotations.go, containerd 1.5 to 2.0).
fn runtime(root: &Path, id: &str) -> Option<Told> {
    ["run/containerd", "run/k3s/containerd"].iter().find_map(|state| {
        let file = format!("{state}/io.containerd.runtime.v2.task/k8s.io/{id}/config.json");
        let found: Runtime = read(&root.join(file))?;
        let of = |name: &str| found.annotations.get(&format!("io.kubernetes.cri.{name}"));
        let pod = || Some(format!("{}/{}", of("sandbox-namespace")?, of("sandbox-name")?));
        Some(Told { image: of("image-name").cloned(), pod: pod() })
    })
}

/// What a file of JSON says, if it is a plain one and not too long.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1fc8e59837f9d4bd320937d4dadbe934e4795cc78320a11142e80c2133fc3f6d";

    /// Files as docker 20.10, podman 4.3 and containerd 1.6 write them, shortened.
    #[test]
    fn each_engine_tells_the_image() {
        let podman = format!(
            r#"[{{"id":"00"}},{{"id":"{ID}","names":["web"],"image":"cc30","metadata":
            "{{\"image-name\":\"localhost/shop/web:3.1\",\"name\":\"web\"}}"}}]"#
        );
        let crio = format!(
            r#"[{{"id":"{ID}","metadata":
            "{{\"pod-name\":\"k8s_web-7_shop_5f0c_0\",\"image-name\":\"quay.example/web:3\"}}"}}]"#
        );
        for (file, text, told) in [
            (
                format!("var/lib/docker/containers/{ID}/config.v2.json"),
                r#"{"Name":"/api","Image":"sha256:2a8f","Config":{"Image":"shop/api:2"}}"#,
                Some("shop/api:2"),
            ),
            (
                "var/lib/containers/storage/overlay-containers/containers.json".to_owned(),
                podman.as_str(),
                Some("localhost/shop/web:3.1"),
            ),
            (
                "var/lib/containers/storage/overlay-containers/containers.json".to_owned(),
                crio.as_str(),
                Some("pod:shop/web-7 quay.example/web:3"),
            ),
            (
                format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"),
                r#"{"ociVersion":"1.0.2","annotations":{"io.kubernetes.cri.image-name":
                "registry.example/shop/cart:9","io.kubernetes.cri.sandbox-name":"cart-0",
                "io.kubernetes.cri.sandbox-namespace":"shop"}}"#,
                Some("pod:shop/cart-0 registry.example/shop/cart:9"),
            ),
            (
                format!("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"),
                r#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"shop",
                "io.kubernetes.cri.sandbox-name":"cart-0"}}"#,
                Some("pod:shop/cart-0"),
            ),
            (
                format!("var/lib/docker/containers/{ID}/config.v2.json"),
                r#"{"Config":{"Image":["#,
                None,
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(&file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            assert_eq!(image_of(root.path(), ID).as_deref(), told, "{file}");
            let another = ID.replace('1', "2");
            assert_eq!(image_of(root.path(), &another), None, "{file}");
        }
    }

    #[test]
    fn an_id_leads_nowhere_else_and_a_pipe_makes_nobody_wait() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("var/lib/docker/containers");
        std::fs::create_dir_all(folder.join(ID)).unwrap();
        for id in ["..", "", "../../../../etc", &format!("{ID}/..")] {
            assert_eq!(image_of(root.path(), id), None, "{id}");
        }
        let pipe = folder.join(ID).join("config.v2.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(image_of(root.path(), ID), None);
    }
}
