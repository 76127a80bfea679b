//! Tables of a C library's functions, each bound once.

/// Declares a struct of function pointers, and how it is filled from an opened library. The library stays open for good:
/// threads that it has started run in it.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $symbol:literal fn($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Binds all functions.
            ///
            /// # Errors
            /// The name of the first function that the library lacks.
            ///
            /// # Safety
            /// Functions of these names have these signatures.
            pub(crate) unsafe fn bind(
                library: ::libloading::os::unix::Library,
            ) -> ::std::result::Result<Self, &'static str> {
                // SAFETY: the caller's promise.
                let table = unsafe {
                    $table {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)*
                    }
                };
                ::std::mem::forget(library);
                Ok(table)
            }
        }
    };
}

pub(crate) use symbols;
