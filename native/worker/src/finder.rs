//! Where libtorch is.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of libtorch that this program is built for: its C++ interface is stable within a minor version only.
pub const VERSION: &str = "2.13";

/// The libraries to load, in this order.
const LIBRARIES: [&str; 2] = ["libc10.so", "libtorch_cpu.so"];

/// Prints the directory of the torch package, which it does not import. What lies in the working directory, which a command
/// given by `-c` may import too, is none of Python's.
const FIND_TORCH: &str = "import sys; sys.path[:] = [p for p in sys.path if p]; \
    import importlib.util as u; s = u.find_spec('torch'); \
    print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')";

/// A libtorch of the right version.
#[derive(Debug, serde::Serialize)]
pub struct Libtorch {
    /// The libraries' absolute paths, in the order to load them in.
    pub libraries: Vec<PathBuf>,
    /// The directory that it was found by.
    #[serde(skip)]
    pub directory: PathBuf,
    /// Its version, such as `2.13.0`.
    pub version: String,
    /// Whether it has a part for GPUs, which is loaded where it is needed.
    pub cuda: bool,
}

/// Why there is no libtorch to load.
#[derive(Debug)]
pub struct NotFound(String);

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds libtorch in the directory given, else in the one that LIBTORCH names, else in torch of the machine's Python: the one
/// that FLAMBEAU_PYTHON names, else `python3`. What is named must do: the later places are not tried after it.
///
/// # Errors
/// One sentence that says where was looked, what was found, and what to install or set.
pub fn find(given: Option<&Path>) -> Result<Libtorch, NotFound> {
    if let Some(directory) = given {
        return look_into(directory, "--libtorch (spark.flambeau.libtorch)");
    }
    if let Some(directory) = env::var_os("LIBTORCH").filter(|value| !value.is_empty()) {
        return look_into(Path::new(&directory), "LIBTORCH");
    }
    let python = env::var_os("FLAMBEAU_PYTHON")
        .filter(|value| !value.is_empty())
        .unwrap_or("python3".into());
    let python = python.to_string_lossy().into_owned();
    match torch_of(&python) {
        Some(directory) => look_into(&directory, &format!("torch of {python}")),
        None => Err(NotFound(format!(
            "libtorch {VERSION} is missing: {python} has no torch, and neither spark.flambeau.libtorch nor LIBTORCH \
             names a directory; {}",
            remedy()
        ))),
    }
}

fn remedy() -> String {
    format!(
        "install torch {VERSION} (pip install torch=={VERSION}.0), or unpack libtorch {VERSION} and set \
         spark.flambeau.libtorch or LIBTORCH to its directory"
    )
}

/// The directory of the torch package of a Python; none where it has none or cannot be run.
fn torch_of(python: &str) -> Option<PathBuf> {
    let output = Command::new(python)
        .args(["-c", FIND_TORCH])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let directory = text.trim();
    (output.status.success() && !directory.is_empty()).then(|| directory.into())
}

/// Takes a libtorch root, its `lib`, or the directory of a torch package.
fn look_into(directory: &Path, named_by: &str) -> Result<Libtorch, NotFound> {
    let shown = directory.display();
    let holds_libraries = |directory: &Path| {
        LIBRARIES
            .iter()
            .all(|library| directory.join(library).is_file())
    };
    let (root, lib) = if holds_libraries(&directory.join("lib")) {
        (directory.to_owned(), directory.join("lib"))
    } else if holds_libraries(directory) {
        (directory.join(".."), directory.to_owned())
    } else {
        return Err(NotFound(format!(
            "there is no libtorch in {shown}, which {named_by} names: it has no lib/{}; {}",
            LIBRARIES.join(" and lib/"),
            remedy()
        )));
    };
    let version = version_of(&root).or_else(|| version_of(&real(&lib).join("..")));
    let Some(version) = version else {
        return Err(NotFound(format!(
            "the version of libtorch in {shown}, which {named_by} names, is not known: it has neither a file \
             build-version nor a version.py; {}",
            remedy()
        )));
    };
    if !version.starts_with(&format!("{VERSION}.")) {
        return Err(NotFound(format!(
            "libtorch in {shown}, which {named_by} names, is {version}, and Flambeau needs {VERSION}; {}",
            remedy()
        )));
    }
    let cuda = lib.join("libtorch_cuda.so").is_file();
    let libraries = LIBRARIES
        .iter()
        .map(|library| real(&lib.join(library)))
        .collect();
    Ok(Libtorch {
        libraries,
        directory: directory.to_owned(),
        version,
        cuda,
    })
}

/// The path without links: a library finds what it needs beside the file that it really is.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The version from `build-version` of a libtorch archive, or from `version.py` of a torch package; without the build's tag
/// (`+cpu`).
fn version_of(root: &Path) -> Option<String> {
    let tagged = match fs::read_to_string(root.join("build-version")) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => fs::read_to_string(root.join("version.py"))
            .ok()?
            .lines()
            .find_map(|line| line.strip_prefix("__version__ = "))?
            .trim_matches(['\'', '"', ' '])
            .to_owned(),
    };
    Some(tagged.split('+').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch(version: &str, file: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lib")).unwrap();
        for library in LIBRARIES {
            fs::write(root.path().join("lib").join(library), "").unwrap();
        }
        fs::write(root.path().join(file), version).unwrap();
        root
    }

    #[test]
    fn roots_their_lib_and_packages_are_taken() {
        let root = torch("2.13.0+cpu\n", "build-version");
        let package = torch(
            "from typing import Optional\n__version__ = '2.13.1+cu130'\n",
            "version.py",
        );
        let lib = root.path().join("lib");
        for (directory, version) in [
            (root.path(), "2.13.0"),
            (lib.as_path(), "2.13.0"),
            (package.path(), "2.13.1"),
        ] {
            let found = find(Some(directory)).unwrap();
            assert_eq!(found.version, version);
            assert_eq!(found.libraries.len(), 2);
            assert!(found.libraries[0].ends_with("lib/libc10.so"));
        }
    }

    #[test]
    fn a_package_in_the_working_directory_is_not_python_s() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("torch")).unwrap();
        fs::write(folder.path().join("torch/__init__.py"), "").unwrap();
        let found = |script: &str| {
            let mut python = Command::new("python3");
            let python = python.args(["-c", script]).current_dir(folder.path());
            String::from_utf8(python.output().unwrap().stdout).unwrap()
        };
        let here = folder.path().to_str().unwrap();
        assert!(!found(FIND_TORCH).contains(here));
        let whole_path = FIND_TORCH.split_once("import importlib").unwrap().1;
        assert!(found(&format!("import importlib{whole_path}")).contains(here));
    }

    #[test]
    fn another_version_and_an_empty_directory_are_refused() {
        let old = torch("2.5.0", "build-version");
        let refused = find(Some(old.path())).unwrap_err().to_string();
        assert!(
            refused.contains("is 2.5.0, and Flambeau needs 2.13"),
            "{refused}"
        );
        let empty = tempfile::tempdir().unwrap();
        let refused = find(Some(empty.path())).unwrap_err().to_string();
        assert!(refused.contains("has no lib/libc10.so"), "{refused}");
        fs::remove_file(old.path().join("build-version")).unwrap();
        let refused = find(Some(old.path())).unwrap_err().to_string();
        assert!(refused.contains("is not known"), "{refused}");
    }
}
