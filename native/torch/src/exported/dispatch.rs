//! Calls of operators through libtorch's dispatcher: the safe side of `cpp/dispatch.h`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use tch::{Device, Tensor};

use super::numbers::Number;
use crate::border::take_text;

/// An argument of a call. Enumerations are c10's numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Slot(usize),
    Bool(bool),
    Int(i64),
    Float(f64),
    Complex(f64, f64),
    String(String),
    ScalarType(i64),
    Layout(i64),
    MemoryFormat(i64),
    Device(String),
    List(Vec<Value>),
}

/// Where a return of a call goes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Return {
    /// Into this slot, or nowhere.
    One(Option<usize>),
    /// Each element of a list into its slot.
    List(Vec<Option<usize>>),
}

/// An operator with its arguments.
pub(super) struct Call(ptr::NonNull<c_void>);

// SAFETY: a call owns its memory and is not written to while it runs; the operators that it names are libtorch's, which
// may be called from any thread.
unsafe impl Send for Call {}
// SAFETY: as above: running a call only reads it.
unsafe impl Sync for Call {}

/// The values of a graph while it runs, in numbered slots.
pub(super) struct Frame {
    frame: ptr::NonNull<c_void>,
    num_slots: usize,
}

impl Call {
    /// A call of an operator, such as `aten::add` with the overload `Tensor`; its arguments have their defaults. `Err`
    /// says why there is no such operator.
    pub(super) fn new(name: &str, overload: &str) -> Result<Call, String> {
        let name = CString::new(name).map_err(|_| "a name with a zero byte".to_string())?;
        let overload = CString::new(overload).map_err(|_| "a name with a zero byte".to_string())?;
        let mut call = ptr::null_mut();
        // SAFETY: the names are strings that end with zero, and `call` is written to on success only.
        check(unsafe { flambeau_call_new(name.as_ptr(), overload.as_ptr(), &mut call) })?;
        ptr::NonNull::new(call)
            .map(Call)
            .ok_or_else(|| "no memory".to_string())
    }

    /// The names of the arguments, in the order of the schema.
    pub(super) fn argument_names(&self) -> Vec<&'static str> {
        // SAFETY: the call is alive, the index is below the number of arguments, and schemas, which the names are part
        // of, live as long as the library that registered them, which is never unloaded.
        unsafe {
            (0..flambeau_call_num_arguments(self.0.as_ptr()))
                .map(|index| CStr::from_ptr(flambeau_call_argument_name(self.0.as_ptr(), index)))
                .map(|name| name.to_str().unwrap_or("?"))
                .collect()
        }
    }

    /// The number of values that it returns.
    pub(super) fn num_returns(&self) -> usize {
        // SAFETY: the call is alive.
        unsafe { flambeau_call_num_returns(self.0.as_ptr()) }
    }

    /// Whether what is returned may lie in the memory of argument `index`, one of [`Call::argument_names`], and whether that gets
    /// new values.
    pub(super) fn aliases(&self, index: usize) -> (bool, bool) {
        let mut writes = false;
        // SAFETY: the call is alive, and the index is one of its arguments.
        let aliases = unsafe { flambeau_call_aliases(self.0.as_ptr(), index, &mut writes) };
        (aliases, writes)
    }

    /// Sets an argument; `Err` where the schema wants something else.
    pub(super) fn set(&mut self, index: usize, value: &Value) -> Result<(), String> {
        let raw = Raw::of(value);
        // SAFETY: the call is alive, and all that the value points to lives in `raw` for the time of the call.
        check(unsafe { flambeau_call_set(self.0.as_ptr(), index, &raw.value) })
    }

    /// Says where return `index`, one of [`Call::num_returns`], goes.
    pub(super) fn set_return(&mut self, index: usize, target: &Return) {
        assert!(index < self.num_returns());
        let number = |slot: &Option<usize>| slot.map_or(-1, |slot| slot as i64);
        let (slots, is_list): (Vec<i64>, bool) = match target {
            Return::One(slot) => (vec![number(slot)], false),
            Return::List(slots) => (slots.iter().map(number).collect(), true),
        };
        // SAFETY: the call is alive, the index is one of its returns, and the slots are copied.
        unsafe {
            flambeau_call_return(self.0.as_ptr(), index, slots.as_ptr(), slots.len(), is_list)
        }
    }

    /// The slots to empty once the arguments have been read.
    pub(super) fn release(&mut self, slots: &[usize]) {
        // SAFETY: the call is alive, and the slots are copied.
        unsafe { flambeau_call_release(self.0.as_ptr(), slots.as_ptr(), slots.len()) }
    }

    /// Fails where an argument without a default was not set.
    pub(super) fn check(&self) -> Result<(), String> {
        // SAFETY: the call is alive.
        check(unsafe { flambeau_call_check(self.0.as_ptr()) })
    }

    /// Has the arguments that name a device name another.
    pub(super) fn move_to(&mut self, from: &CStr, to: &CStr) -> Result<(), String> {
        // SAFETY: the call is alive, and the names end with zero.
        check(unsafe { flambeau_call_move(self.0.as_ptr(), from.as_ptr(), to.as_ptr()) })
    }

    /// Runs the operator on the values of a frame. `Err` is what it says.
    pub(super) fn run(&self, frame: &mut Frame) -> Result<(), String> {
        // SAFETY: both are alive; a slot that the frame does not have is an error on the other side.
        check(unsafe { flambeau_call_run(self.0.as_ptr(), frame.frame.as_ptr()) })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: the call is alive, and not used after.
        unsafe { flambeau_call_free(self.0.as_ptr()) }
    }
}

impl Frame {
    /// A frame of empty slots.
    pub(super) fn new(num_slots: usize) -> Frame {
        // SAFETY: `new` either returns memory or ends the process.
        let frame = unsafe { flambeau_frame_new(num_slots) };
        Frame {
            frame: ptr::NonNull::new(frame).expect("operator new returns no null"),
            num_slots,
        }
    }

    pub(super) fn set_tensor(&mut self, slot: usize, tensor: &Tensor) {
        assert!(slot < self.num_slots);
        // SAFETY: the frame is alive, the slot is one of its own, and a tch tensor points to an `at::Tensor`, of which
        // a handle is taken.
        unsafe { flambeau_frame_set_tensor(self.frame.as_ptr(), slot, tensor.as_ptr()) }
    }

    pub(super) fn set_number(&mut self, slot: usize, number: Number) {
        assert!(slot < self.num_slots);
        let raw = match number {
            Number::Bool(value) => RawNumber {
                kind: BOOL,
                integer: value.into(),
                real: 0.0,
            },
            Number::Int(value) => RawNumber {
                kind: INT,
                integer: value,
                real: 0.0,
            },
            Number::Float(value) => RawNumber {
                kind: FLOAT,
                integer: 0,
                real: value,
            },
        };
        // SAFETY: the frame is alive, and the slot is one of its own.
        unsafe { flambeau_frame_set_number(self.frame.as_ptr(), slot, &raw) }
    }

    /// The tensor in a slot; `Err` where there is something else.
    pub(super) fn tensor(&self, slot: usize) -> Result<Tensor, String> {
        let mut tensor = ptr::null_mut();
        // SAFETY: the frame is alive, and `tensor` is written to on success only, with a handle that is ours.
        unsafe {
            check(flambeau_frame_tensor(
                self.frame.as_ptr(),
                slot,
                &mut tensor,
            ))?;
            Ok(Tensor::from_ptr(tensor))
        }
    }

    /// The number in a slot; `Err` where there is something else.
    pub(super) fn number(&self, slot: usize) -> Result<Number, String> {
        let mut raw = RawNumber {
            kind: INT,
            integer: 0,
            real: 0.0,
        };
        // SAFETY: the frame is alive, and `raw` is written to on success only.
        check(unsafe { flambeau_frame_number(self.frame.as_ptr(), slot, &mut raw) })?;
        Ok(match raw.kind {
            BOOL => Number::Bool(raw.integer != 0),
            INT => Number::Int(raw.integer),
            _ => Number::Float(raw.real),
        })
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame is alive, and not used after.
        unsafe { flambeau_frame_free(self.frame.as_ptr()) }
    }
}

/// What a part of a graph runs under.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mode {
    /// Whether gradients are recorded.
    Gradients(bool),
    /// Autocast; `scalar_type` is c10's number, `None` the device's own.
    Autocast {
        device_type: CString,
        enabled: bool,
        scalar_type: Option<i32>,
        cache_enabled: bool,
    },
}

impl Mode {
    /// Has a mode of one kind of devices be that of another's.
    pub(super) fn move_to(&mut self, from: &CStr, to: &CStr) {
        if let Mode::Autocast { device_type, .. } = self
            && device_type.as_c_str() == kind_of(from).as_c_str()
        {
            *device_type = kind_of(to);
        }
    }
}

/// A device as c10 writes it, such as `cpu` or `cuda:1`.
pub(super) fn device_name(device: Device) -> CString {
    let name = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".into(),
    };
    CString::new(name).expect("no byte is 0")
}

/// The kind of a device: its name without its number.
fn kind_of(device: &CStr) -> CString {
    let name = device.to_bytes().split(|&byte| byte == b':').next();
    CString::new(name.unwrap_or_default()).expect("no byte is 0")
}

/// A mode that this thread is in; dropping it sets back what was before.
pub(super) enum Entered {
    Gradients(bool),
    Autocast(RawAutocast),
}

impl Entered {
    /// Enters a mode on this thread.
    pub(super) fn new(mode: &Mode) -> Result<Entered, String> {
        match mode {
            // SAFETY: sets a thread-local flag.
            Mode::Gradients(enabled) => Ok(Entered::Gradients(
                unsafe { torch_sys::at_grad_set_enabled((*enabled).into()) } != 0,
            )),
            Mode::Autocast {
                device_type,
                enabled,
                scalar_type,
                cache_enabled,
            } => {
                let mut previous = RawAutocast {
                    device_type: 0,
                    enabled: false,
                    scalar_type: -1,
                    cache_enabled: false,
                };
                // SAFETY: the string ends with zero, and `previous` is written to.
                check(unsafe {
                    flambeau_autocast_enter(
                        device_type.as_ptr(),
                        *enabled,
                        scalar_type.unwrap_or(-1),
                        *cache_enabled,
                        &mut previous,
                    )
                })?;
                Ok(Entered::Autocast(previous))
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: sets thread-local state back to what it was.
        unsafe {
            match self {
                Entered::Gradients(previous) => {
                    torch_sys::at_grad_set_enabled((*previous).into());
                }
                Entered::Autocast(previous) => flambeau_autocast_leave(previous),
            }
        }
    }
}

/// The error of a call into C++, whose message is freed.
pub(super) fn check(message: *mut c_char) -> Result<(), String> {
    match message.is_null() {
        true => Ok(()),
        false => Err(take_text(message)),
    }
}

const NONE: i32 = 0;
const SLOT: i32 = 1;
const BOOL: i32 = 2;
const INT: i32 = 3;
const FLOAT: i32 = 4;
const COMPLEX: i32 = 5;
const STRING: i32 = 6;
const SCALAR_TYPE: i32 = 7;
const LAYOUT: i32 = 8;
const MEMORY_FORMAT: i32 = 9;
const DEVICE: i32 = 10;
const LIST: i32 = 11;

/// A value as C++ takes it, with the items that it points to. It borrows the text of the [`Value`] it is of.
struct Raw {
    value: RawValue,
    _items: Vec<RawValue>,
    _nested: Vec<Raw>,
}

impl Raw {
    fn of(value: &Value) -> Raw {
        let mut raw = RawValue {
            kind: NONE,
            integer: 0,
            real: 0.0,
            imaginary: 0.0,
            text: ptr::null(),
            length: 0,
            items: ptr::null(),
            num_items: 0,
        };
        let (mut items, mut nested) = (vec![], vec![]);
        let mut integer = |kind, integer| (raw.kind, raw.integer) = (kind, integer);
        match value {
            Value::None => {}
            Value::Slot(slot) => integer(SLOT, *slot as i64),
            Value::Bool(value) => integer(BOOL, (*value).into()),
            Value::Int(value) => integer(INT, *value),
            Value::ScalarType(value) => integer(SCALAR_TYPE, *value),
            Value::Layout(value) => integer(LAYOUT, *value),
            Value::MemoryFormat(value) => integer(MEMORY_FORMAT, *value),
            Value::Float(value) => (raw.kind, raw.real) = (FLOAT, *value),
            Value::Complex(real, imaginary) => {
                (raw.kind, raw.real, raw.imaginary) = (COMPLEX, *real, *imaginary);
            }
            Value::String(text) | Value::Device(text) => {
                raw.kind = if matches!(value, Value::Device(_)) {
                    DEVICE
                } else {
                    STRING
                };
                (raw.text, raw.length) = (text.as_ptr().cast(), text.len());
            }
            Value::List(values) => {
                nested = values.iter().map(Raw::of).collect::<Vec<Raw>>();
                items = nested
                    .iter()
                    .map(|item| item.value)
                    .collect::<Vec<RawValue>>();
                (raw.kind, raw.items, raw.num_items) = (LIST, items.as_ptr(), items.len());
            }
        }
        Raw {
            value: raw,
            _items: items,
            _nested: nested,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RawValue {
    kind: i32,
    integer: i64,
    real: f64,
    imaginary: f64,
    text: *const c_char,
    length: usize,
    items: *const RawValue,
    num_items: usize,
}

#[repr(C)]
struct RawNumber {
    kind: i32,
    integer: i64,
    real: f64,
}

/// The state of autocast on a thread.
#[repr(C)]
pub(super) struct RawAutocast {
    device_type: i32,
    enabled: bool,
    scalar_type: i32,
    cache_enabled: bool,
}

unsafe extern "C" {
    fn flambeau_call_new(
        name: *const c_char,
        overload: *const c_char,
        call: *mut *mut c_void,
    ) -> *mut c_char;
    fn flambeau_call_free(call: *mut c_void);
    fn flambeau_call_num_arguments(call: *const c_void) -> usize;
    fn flambeau_call_argument_name(call: *const c_void, index: usize) -> *const c_char;
    fn flambeau_call_num_returns(call: *const c_void) -> usize;
    fn flambeau_call_aliases(call: *const c_void, index: usize, writes: *mut bool) -> bool;
    fn flambeau_call_set(call: *mut c_void, index: usize, value: *const RawValue) -> *mut c_char;
    fn flambeau_call_return(
        call: *mut c_void,
        index: usize,
        slots: *const i64,
        num_slots: usize,
        is_list: bool,
    );
    fn flambeau_call_release(call: *mut c_void, slots: *const usize, num_slots: usize);
    fn flambeau_call_move(call: *mut c_void, from: *const c_char, to: *const c_char)
    -> *mut c_char;
    fn flambeau_call_check(call: *const c_void) -> *mut c_char;
    fn flambeau_call_run(call: *const c_void, frame: *mut c_void) -> *mut c_char;
    fn flambeau_frame_new(num_slots: usize) -> *mut c_void;
    fn flambeau_frame_free(frame: *mut c_void);
    fn flambeau_frame_set_tensor(
        frame: *mut c_void,
        slot: usize,
        tensor: *const torch_sys::C_tensor,
    );
    fn flambeau_frame_set_number(frame: *mut c_void, slot: usize, number: *const RawNumber);
    fn flambeau_frame_tensor(
        frame: *const c_void,
        slot: usize,
        tensor: *mut *mut torch_sys::C_tensor,
    ) -> *mut c_char;
    fn flambeau_frame_number(
        frame: *const c_void,
        slot: usize,
        number: *mut RawNumber,
    ) -> *mut c_char;
    fn flambeau_autocast_enter(
        device_type: *const c_char,
        enabled: bool,
        scalar_type: i32,
        cache_enabled: bool,
        previous: *mut RawAutocast,
    ) -> *mut c_char;
    fn flambeau_autocast_leave(previous: *const RawAutocast);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros() -> Call {
        let mut call = Call::new("aten::zeros", "").unwrap();
        let index = |name| {
            call.argument_names()
                .iter()
                .position(|other| *other == name)
                .unwrap()
        };
        let (size, device) = (index("size"), index("device"));
        call.set(size, &Value::List(vec![Value::Int(2)])).unwrap();
        call.set(device, &Value::Device("cpu".into())).unwrap();
        call.set_return(0, &Return::One(Some(0)));
        call
    }

    #[test]
    fn what_names_a_device_is_moved() {
        let mut call = zeros();
        let made = |call: &Call| {
            let mut frame = Frame::new(1);
            call.run(&mut frame).unwrap();
            frame.tensor(0).unwrap().device()
        };
        assert_eq!(made(&call), Device::Cpu);
        call.move_to(c"cuda:0", c"cuda:1").unwrap();
        assert_eq!(made(&call), Device::Cpu);
        call.move_to(c"cpu", c"cuda:9").unwrap();
        let error = call.run(&mut Frame::new(1)).unwrap_err();
        // Without CUDA, without a driver, or without so many GPUs.
        assert!(
            ["CUDA", "NVIDIA"].iter().any(|name| error.contains(name)),
            "{error}"
        );
    }

    #[test]
    fn autocast_goes_with_the_device() {
        let autocast = |device_type: &CStr| Mode::Autocast {
            device_type: device_type.to_owned(),
            enabled: true,
            scalar_type: None,
            cache_enabled: true,
        };
        let mut mode = autocast(c"cpu");
        mode.move_to(&device_name(Device::Cpu), &device_name(Device::Cuda(1)));
        assert_eq!(mode, autocast(c"cuda"));
        mode.move_to(&device_name(Device::Cpu), &device_name(Device::Cuda(1)));
        assert_eq!(mode, autocast(c"cuda"));
    }
}
