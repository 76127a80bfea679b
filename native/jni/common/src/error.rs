//! Where errors and panics become Java exceptions. What only one library fails with, it gives the class for.

use std::any::Any;
use std::error::Error;

use flambeau_data::DataError;
use jni::errors::ErrorPolicy;
use jni::objects::{JClass, JObject, JString, JThrowable};
use jni::strings::JNIStr;
use jni::{Env, JValue, jni_sig, jni_str};

/// Why a native function failed.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// A store, or what lies in it.
    #[error(transparent)]
    Data(#[from] DataError),
    /// What only one of the libraries knows, with the exception's class.
    #[error("{source}")]
    Own {
        /// One of this module's classes.
        class: &'static JNIStr,
        /// What failed.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A message between the JVM and this library that cannot be read.
    #[error("{what} cannot be read: {source}")]
    Message {
        /// Which one.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// An argument that makes no sense, such as a closed handle.
    #[error("{0}")]
    Argument(String),
    /// A panic.
    #[error("a defect in Flambeau: {0}")]
    Defect(String),
    /// The JVM. An exception that it threw is pending.
    #[error("the JVM failed: {0}")]
    Jvm(#[from] jni::errors::Error),
}

impl NativeError {
    /// The exception's class.
    fn class(&self) -> &'static JNIStr {
        match self {
            NativeError::Own { class, .. } => class,
            NativeError::Data(error) => class_of(error),
            _ => GENERAL,
        }
    }
}

/// The class for a setting that makes no sense.
pub const PARAM: &JNIStr = jni_str!("flambeau/ParamException");
/// The class for a run that another driver trains.
pub const RUN_IN_USE: &JNIStr = jni_str!("flambeau/RunInUseException");
/// The class for rows, and what lies in files.
pub const DATA: &JNIStr = jni_str!("flambeau/DataException");
/// The class for files that cannot be reached.
pub const STORE: &JNIStr = jni_str!("flambeau/StoreException");
const TRANSIENT: &JNIStr = jni_str!("flambeau/TransientStoreException");
/// The class for everything else.
pub const GENERAL: &JNIStr = jni_str!("flambeau/GeneralException");

/// The exception's class for what a store or its files fail with.
pub fn class_of(error: &DataError) -> &'static JNIStr {
    match error {
        error if error.is_transient() => TRANSIENT,
        error if error.is_of_store() => STORE,
        _ => DATA,
    }
}

/// Throws what failed and returns null, 0 or nothing to the JVM, which does not look at it.
pub struct Throw;

impl<T: Default> ErrorPolicy<T, NativeError> for Throw {
    type Captures<'frame: 'call, 'call> = ();

    fn on_error<'frame: 'call, 'call>(
        env: &mut Env<'frame>,
        _: &mut (),
        error: NativeError,
    ) -> jni::errors::Result<T> {
        throw(env, error.class(), &error);
        Ok(T::default())
    }

    fn on_panic<'frame: 'call, 'call>(
        env: &mut Env<'frame>,
        _: &mut (),
        payload: Box<dyn Any + Send>,
    ) -> jni::errors::Result<T> {
        let text = match payload.downcast_ref::<String>() {
            Some(text) => text,
            None => payload.downcast_ref::<&str>().copied().unwrap_or("a panic"),
        };
        throw(env, GENERAL, &NativeError::Defect(text.to_owned()));
        Ok(T::default())
    }
}

/// Leaves an exception pending: the one that the JVM threw itself, else one of `class`, else a `RuntimeException`.
fn throw(env: &mut Env<'_>, class: &JNIStr, error: &dyn Error) {
    if env.exception_check() {
        return;
    }
    match exception(env, class, error) {
        // `throw` reports the exception that it leaves pending as an error of its own.
        Ok(exception) => drop(env.throw(&exception)),
        Err(_) => {
            env.exception_clear();
            drop(env.throw(error.to_string()));
        }
    }
}

/// An exception with the error's text, and one below it for each of the error's causes that says more.
fn exception<'frame>(
    env: &mut Env<'frame>,
    class: &JNIStr,
    error: &dyn Error,
) -> jni::errors::Result<JThrowable<'frame>> {
    let text = error.to_string();
    let mut source = error.source();
    // A wrapper that shows its cause's text has nothing to add.
    while source.is_some_and(|source| source.to_string() == text) {
        source = source.and_then(Error::source);
    }
    let cause = match source {
        Some(source) => JObject::from(exception(
            env,
            jni_str!("java/lang/RuntimeException"),
            source,
        )?),
        None => JObject::null(),
    };
    // In a native method, this asks the class loader of the class that declares it.
    let class: JClass = env.find_class(class)?;
    let message = JString::from_str(env, text)?;
    let made = env.new_object(
        class,
        jni_sig!("(Ljava/lang/String;Ljava/lang/Throwable;)V"),
        &[JValue::from(&message), JValue::from(&cause)],
    )?;
    env.cast_local::<JThrowable>(made)
}
