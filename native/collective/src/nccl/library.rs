//! libnccl, found and opened at run time.

use std::env;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::{Code, NcclFunctions, OLDEST, RawUniqueId, SUCCESS};
use super::version::NcclVersion;
use crate::error::{CollectiveError, Result};

/// Names the library to use, before all others.
const VARIABLE: &str = "FLAMBEAU_NCCL";

/// The library's name, in a wheel's directory and on the system's path.
const FILE: &str = "libnccl.so.2";

/// An opened libnccl. Cheap to clone; it stays in the process for good.
#[derive(Clone)]
pub struct NcclLibrary {
    functions: Arc<NcclFunctions>,
    path: PathBuf,
    version: NcclVersion,
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclLibrary")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl NcclLibrary {
    /// Opens the file that `FLAMBEAU_NCCL` names; where that is not set, `libnccl.so.2` in the first of `directories` that has
    /// one, such as the `nvidia-nccl` wheel's beside torch; else the one that the system's loader finds. Needs no GPU.
    ///
    /// # Errors
    /// `NcclLibrary`, which says what was tried: where there is none, it cannot be opened or lacks a function, or it is older
    /// than 2.17. What was found first is not passed over.
    pub fn open(directories: &[PathBuf]) -> Result<Self> {
        if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            return Self::open_file(Path::new(&path)).map_err(|reason| {
                refused(format!(
                    "{VARIABLE}: {reason}; name a {FILE}, or unset the variable"
                ))
            });
        }
        let in_directory = directories
            .iter()
            .map(|directory| directory.join(FILE))
            .find(|path| path.exists());
        if let Some(path) = in_directory {
            return Self::open_file(&path).map_err(refused);
        }
        Self::open_file(Path::new(FILE)).map_err(|reason| {
            let searched: Vec<_> = directories
                .iter()
                .map(|directory| directory.display().to_string())
                .collect();
            refused(format!(
                "no NCCL library: {VARIABLE} is not set, there is no {FILE} in [{}], and of the system's: {reason}; install \
                 torch with CUDA or nvidia-nccl, or name the library with {VARIABLE}",
                searched.join(", ")
            ))
        })
    }

    fn open_file(path: &Path) -> std::result::Result<Self, String> {
        // SAFETY: what runs on loading are the initialisers of NCCL.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| format!("{} cannot be opened: {error}", path.display()))?;
        // SAFETY: functions of these names are NCCL's, whose signatures are those of its header.
        let functions = unsafe { NcclFunctions::bind(library) }.map_err(|symbol| {
            format!(
                "{} is no NCCL of {OLDEST} or newer: it has no {symbol}",
                path.display()
            )
        })?;
        let mut code: c_int = 0;
        // SAFETY: the number is alive.
        let result = unsafe { (functions.get_version)(&raw mut code) };
        let version = NcclVersion::from_code(u32::try_from(code).unwrap_or(0));
        if result != SUCCESS || version < OLDEST {
            return Err(format!(
                "{} is NCCL {version}; {OLDEST} or newer is needed",
                path.display()
            ));
        }
        Ok(NcclLibrary {
            functions: Arc::new(functions),
            path: path.to_owned(),
            version,
        })
    }

    /// The file that was opened; its bare name where the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version.
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    pub(crate) fn functions(&self) -> &NcclFunctions {
        &self.functions
    }

    /// A new identity for a communicator. This process serves its ranks from now on, on a thread of NCCL's and a network
    /// interface that NCCL chooses (`NCCL_SOCKET_IFNAME`).
    pub(crate) fn unique_id(&self) -> std::result::Result<RawUniqueId, String> {
        let mut id = RawUniqueId([0; 128]);
        // SAFETY: the id is alive.
        match unsafe { (self.functions.get_unique_id)(&raw mut id) } {
            SUCCESS => Ok(id),
            code => Err(self.describe("ncclGetUniqueId", code)),
        }
    }

    /// What a call's failure is, in NCCL's words.
    pub(crate) fn describe(&self, call: &str, code: Code) -> String {
        // SAFETY: NCCL returns strings that live as long as it does. The last error is the thread's or the process's, and
        // needs no communicator.
        let (text, last) = unsafe {
            let last = (self.functions.get_last_error)(std::ptr::null_mut());
            (
                CStr::from_ptr((self.functions.get_error_string)(code)).to_string_lossy(),
                (!last.is_null()).then(|| CStr::from_ptr(last).to_string_lossy()),
            )
        };
        match last.filter(|last| !last.is_empty()) {
            Some(last) => format!("{call}: {text} (code {code}): {last}"),
            None => format!("{call}: {text} (code {code}); NCCL_DEBUG=WARN tells more"),
        }
    }
}

fn refused(message: String) -> CollectiveError {
    CollectiveError::NcclLibrary { message }
}
