//! TorchScript archives as programs, and as losses.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, slice};

use flambeau_train::check_script_file;
use tch::{Device, Tensor};
use torch_sys::C_tensor;

use crate::border::{check, take_text};
use crate::error::TorchError;
use crate::program::{NamedTensor, Outputs, Program};
use crate::purity::check_operators;
use crate::tensor::gpu_of;

/// The file in an archive that names the buffers registered with `persistent=False`, as a JSON list. TorchScript
/// itself makes every buffer persistent.
const FIXED: &CStr = c"flambeau_fixed.json";

/// The name of a scripted program in a saved model.
const FILE_NAME: &str = "program.pt";

/// What C++ keeps of a module.
#[repr(C)]
struct RawScript {
    _private: [u8; 0],
}

/// What C++ keeps of what a module returned.
#[repr(C)]
struct RawOutput {
    _private: [u8; 0],
}

/// Takes a name and bytes, in the context that it was given with.
type Take = extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize);

unsafe extern "C" {
    fn flambeau_script_files(
        data: *const c_char,
        size: usize,
        context: *mut c_void,
        take: Take,
    ) -> *mut c_char;
    fn flambeau_script_operators(
        script: *mut RawScript,
        context: *mut c_void,
        take: Take,
    ) -> *mut c_char;
    fn flambeau_script_load(
        data: *const c_char,
        size: usize,
        extra_name: *const c_char,
        result: *mut *mut RawScript,
        extra_text: *mut *mut c_char,
    ) -> *mut c_char;
    fn flambeau_script_free(script: *mut RawScript);
    fn flambeau_script_num_tensors(script: *const RawScript) -> usize;
    fn flambeau_script_tensor(
        script: *const RawScript,
        index: usize,
        name: *mut *const c_char,
        is_buffer: *mut bool,
    ) -> *mut C_tensor;
    fn flambeau_script_move(script: *mut RawScript, from: i32, to: i32) -> *mut c_char;
    fn flambeau_script_train(script: *mut RawScript, training: bool) -> *mut c_char;
    fn flambeau_script_arguments(
        script: *const RawScript,
        context: *mut c_void,
        take: Take,
    ) -> *mut c_char;
    fn flambeau_script_forward(
        script: *mut RawScript,
        inputs: *const *const C_tensor,
        num_inputs: usize,
        result: *mut *mut RawOutput,
    ) -> *mut c_char;
    fn flambeau_script_loss(
        script: *mut RawScript,
        kind: i32,
        tensors: *const *const C_tensor,
        names: *const *const c_char,
        count: usize,
        labels: *const *const C_tensor,
        num_labels: usize,
        result: *mut *mut RawOutput,
    ) -> *mut c_char;
    fn flambeau_output_kind(output: *const RawOutput, other: *mut *const c_char) -> i32;
    fn flambeau_output_len(output: *const RawOutput) -> usize;
    fn flambeau_output_tensor(
        output: *const RawOutput,
        index: usize,
        name: *mut *const c_char,
    ) -> *mut C_tensor;
    fn flambeau_output_free(output: *mut RawOutput);
    fn flambeau_script_save_hollow(
        script: *mut RawScript,
        path: *const c_char,
        fixed: *const *const c_char,
        num_fixed: usize,
        extra_name: *const c_char,
        extra_text: *const c_char,
    ) -> *mut c_char;
}

/// A TorchScript module.
pub struct ScriptProgram {
    raw: *mut RawScript,
    /// Names of the buffers that are not part of the `state_dict`.
    fixed: Vec<String>,
    training: AtomicBool,
}

// SAFETY: the module is owned here alone, and libtorch's modules are bound to no thread.
unsafe impl Send for ScriptProgram {}
// SAFETY: libtorch runs a module from several threads at once; the mode changes only where one thread has the program.
unsafe impl Sync for ScriptProgram {}

impl ScriptProgram {
    /// Loads an archive as `torch.jit.save` writes it, in evaluation mode.
    ///
    /// # Errors
    ///
    /// What torch says of a file that is no such archive.
    pub fn load(bytes: &[u8]) -> Result<ScriptProgram, TorchError> {
        let (mut raw, mut extra) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the bytes are read during the call only.
        let failure = unsafe {
            flambeau_script_load(
                bytes.as_ptr().cast(),
                bytes.len(),
                FIXED.as_ptr(),
                &mut raw,
                &mut extra,
            )
        };
        check(failure)?;
        let mut program = ScriptProgram {
            raw,
            fixed: vec![],
            training: AtomicBool::new(true),
        };
        program.fixed = fixed_names(&take_text(extra))?;
        program.set_training(false)?;
        Ok(program)
    }

    /// Loads an archive in which there is nothing but what computes.
    ///
    /// # Errors
    ///
    /// [`TorchError::Param`] where the load, or any function of the archive, could do more.
    pub(crate) fn load_pure(bytes: &[u8]) -> Result<ScriptProgram, TorchError> {
        check_files(bytes)?;
        let program = ScriptProgram::load(bytes)?;
        check_operators(&program.operators()?)?;
        Ok(program)
    }

    /// The names of the operators that any function of the archive calls.
    fn operators(&self) -> Result<Vec<String>, TorchError> {
        let mut found = Taken::default();
        // SAFETY: the module is live, and what takes the names outlives the call.
        check(unsafe {
            flambeau_script_operators(self.raw, (&raw mut found).cast(), Taken::take)
        })?;
        Ok(found.0.into_iter().map(|(name, _, _)| name).collect())
    }

    /// Calls `forward(output, label)` of a loss: with a tuple where there are several labels, with the output alone
    /// where there is none.
    pub(crate) fn call_loss(
        &self,
        output: &Outputs,
        labels: &[Tensor],
    ) -> Result<Outputs, TorchError> {
        let (kind, tensors, names) = output.parts();
        let tensors = pointers(tensors);
        let names: Vec<CString> = names.into_iter().map(c_string).collect();
        let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let labels = pointers(labels.iter());
        let mut result = ptr::null_mut();
        // SAFETY: all pointers are to live tensors and texts, which are read during the call only.
        let failure = unsafe {
            flambeau_script_loss(
                self.raw,
                kind,
                tensors.as_ptr(),
                name_pointers.as_ptr(),
                tensors.len(),
                labels.as_ptr(),
                labels.len(),
                &mut result,
            )
        };
        check(failure)?;
        RawOutputs(result).unpack("loss")
    }

    fn set_training(&self, training: bool) -> Result<(), TorchError> {
        if self.training.swap(training, Ordering::Relaxed) != training {
            // SAFETY: the module is live.
            check(unsafe { flambeau_script_train(self.raw, training) })?;
        }
        Ok(())
    }

    /// The arguments of forward, each with whether it may be left out.
    pub(crate) fn signature(&self) -> Result<Vec<(String, bool)>, TorchError> {
        let mut found = Taken::default();
        // SAFETY: the module is live, and what takes the names outlives the call.
        check(unsafe {
            flambeau_script_arguments(self.raw, (&raw mut found).cast(), Taken::take)
        })?;
        let found = found.0.into_iter();
        Ok(found
            .map(|(name, _, optional)| (name, optional == 1))
            .collect())
    }

    fn check_num_inputs(&self, given: usize) -> Result<(), TorchError> {
        let signature = self.signature()?;
        let most = signature.len();
        let least = signature.iter().filter(|(_, optional)| !optional).count();
        if (least..=most).contains(&given) {
            return Ok(());
        }
        let takes = match least == most {
            true => format!("{most}"),
            false => format!("{least} to {most}"),
        };
        Err(TorchError::Param(format!(
            "model: forward takes {takes} inputs, but there are {given}; inputCols gives one tensor per argument, \
             featuresCol one tensor in all"
        )))
    }
}

impl Drop for ScriptProgram {
    fn drop(&mut self) {
        // SAFETY: the module is owned here and freed once.
        unsafe { flambeau_script_free(self.raw) }
    }
}

impl Program for ScriptProgram {
    fn tensors(&self) -> Vec<NamedTensor> {
        // SAFETY: the module is live.
        let count = unsafe { flambeau_script_num_tensors(self.raw) };
        let tensor = |index| {
            let (mut name, mut is_buffer) = (ptr::null(), false);
            // SAFETY: the index is below the count, the name lives as long as the module, and the tensor is a new
            // handle, owned by nobody yet.
            let (name, tensor) = unsafe {
                let tensor = flambeau_script_tensor(self.raw, index, &mut name, &mut is_buffer);
                let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                (name, Tensor::from_ptr(tensor))
            };
            NamedTensor {
                requires_grad: !is_buffer && tensor.requires_grad(),
                persistent: !self.fixed.contains(&name),
                name,
                tensor,
                is_buffer,
            }
        };
        (0..count).map(tensor).collect()
    }

    fn forward(&self, inputs: &[Tensor], training: bool) -> Result<Outputs, TorchError> {
        self.set_training(training)?;
        let pointers = pointers(inputs.iter());
        let mut result = ptr::null_mut();
        // SAFETY: all pointers are to live tensors, which are read during the call only.
        let failure = unsafe {
            flambeau_script_forward(self.raw, pointers.as_ptr(), pointers.len(), &mut result)
        };
        if let Err(error) = check(failure) {
            self.check_num_inputs(inputs.len())?;
            return Err(error);
        }
        RawOutputs(result).unpack("model: forward")
    }

    fn arguments(&self) -> Result<Vec<String>, TorchError> {
        Ok(self
            .signature()?
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError> {
        // SAFETY: the module is live.
        check(unsafe { flambeau_script_move(self.raw, gpu_of(from), gpu_of(to)) })
    }

    fn write(&self, directory: &Path) -> Result<Vec<String>, TorchError> {
        let path = c_string(directory.join(FILE_NAME).to_string_lossy());
        let names: Vec<CString> = self.fixed.iter().map(c_string).collect();
        let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let text = c_string(serde_json::to_string(&self.fixed).expect("strings are JSON"));
        // SAFETY: all pointers are to live texts, which are read during the call only.
        let failure = unsafe {
            flambeau_script_save_hollow(
                self.raw,
                path.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                FIXED.as_ptr(),
                text.as_ptr(),
            )
        };
        self.training.store(false, Ordering::Relaxed);
        check(failure)?;
        Ok(vec![FILE_NAME.to_string()])
    }
}

/// An output that C++ still holds.
struct RawOutputs(*mut RawOutput);

impl RawOutputs {
    /// The tensors; `who` returned them.
    fn unpack(self, who: &str) -> Result<Outputs, TorchError> {
        let mut other = ptr::null();
        // SAFETY: the output is live, and so are its texts until it is freed.
        let (kind, other) = unsafe {
            let kind = flambeau_output_kind(self.0, &mut other);
            (kind, CStr::from_ptr(other).to_string_lossy().into_owned())
        };
        // SAFETY: as above.
        let count = unsafe { flambeau_output_len(self.0) };
        let mut named = Vec::with_capacity(count);
        for index in 0..count {
            let mut name = ptr::null();
            // SAFETY: as above; the tensor is a new handle, owned by nobody yet.
            unsafe {
                let tensor = Tensor::from_ptr(flambeau_output_tensor(self.0, index, &mut name));
                named.push((CStr::from_ptr(name).to_string_lossy().into_owned(), tensor));
            }
        }
        let unnamed =
            |named: Vec<(String, Tensor)>| named.into_iter().map(|(_, tensor)| tensor).collect();
        match kind {
            0 => Ok(Outputs::Tensor(named.remove(0).1)),
            1 => Ok(Outputs::Tuple(unnamed(named))),
            2 => Ok(Outputs::List(unnamed(named))),
            3 => Ok(Outputs::NamedTuple(named)),
            4 => Ok(Outputs::Dict(named)),
            _ if other.contains(" as ") => Err(TorchError::Param(format!(
                "{who} returns {other}; return tensors only"
            ))),
            _ => Err(TorchError::Param(format!(
                "{who} returns {other}; return a tensor, or a tuple or dict of tensors"
            ))),
        }
    }
}

impl Drop for RawOutputs {
    fn drop(&mut self) {
        // SAFETY: the output is owned here and freed once.
        unsafe { flambeau_output_free(self.0) }
    }
}

/// Refuses an archive of torch's, a program or saved tensors, with code that a load runs, or with tensors that are larger than
/// what it holds of them.
pub(crate) fn check_files(archive: &[u8]) -> Result<(), TorchError> {
    let mut files = Taken::default();
    // SAFETY: the bytes and what takes the files are read during the call only.
    check(unsafe {
        flambeau_script_files(
            archive.as_ptr().cast(),
            archive.len(),
            (&raw mut files).cast(),
            Taken::take,
        )
    })?;
    let mut sizes: HashMap<String, u64> = HashMap::new();
    for (name, _, size) in &files.0 {
        let known = sizes.entry(name.to_ascii_lowercase()).or_insert(*size);
        *known = (*known).min(*size);
    }
    let files = files.0.iter();
    files
        .filter_map(|(name, bytes, _)| Some((name, bytes.as_ref()?)))
        .try_for_each(|(name, bytes)| check_script_file(name, bytes, &sizes))
        .map_err(TorchError::Param)
}

/// What C++ gave by a [`Take`]: names, and bytes where it gave them and not their number alone.
#[derive(Default)]
struct Taken(Vec<(String, Option<Vec<u8>>, u64)>);

impl Taken {
    extern "C" fn take(
        context: *mut c_void,
        name: *const c_char,
        length: usize,
        data: *const c_char,
        size: usize,
    ) {
        // SAFETY: the context is the `Taken` that the call was given, and the name has so many bytes.
        let (taken, name) = unsafe {
            let name = slice::from_raw_parts(name.cast(), length);
            (&mut *context.cast::<Taken>(), String::from_utf8_lossy(name))
        };
        // SAFETY: the data have so many bytes, which live during the call.
        let bytes = (!data.is_null())
            .then(|| unsafe { slice::from_raw_parts(data.cast::<u8>(), size).to_vec() });
        taken.0.push((name.into_owned(), bytes, size as u64));
    }
}

fn pointers<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<*const C_tensor> {
    tensors.into_iter().map(|tensor| tensor.as_ptr()).collect()
}

/// The names in an archive's own file; none where it has no such file.
fn fixed_names(text: &str) -> Result<Vec<String>, TorchError> {
    if text.is_empty() {
        return Ok(vec![]);
    }
    serde_json::from_str(text).map_err(|error| {
        TorchError::Param(format!(
            "the program's {} is not a JSON list of names: {error}",
            FIXED.to_string_lossy()
        ))
    })
}

/// A text without the bytes 0 that C ends texts with.
fn c_string(text: impl AsRef<str>) -> CString {
    CString::new(text.as_ref().replace('\0', "")).expect("no byte is 0")
}
