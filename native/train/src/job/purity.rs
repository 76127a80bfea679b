//! Which programs are data: those that compute and do nothing else.
//!
//! A saved program is run by whoever loads it. One that calls the operators of `pure_operators.txt` alone cannot do more than
//! compute. Exported graphs name their operators, and loading one runs none. A TorchScript archive holds source code, of
//! which a load runs the defaults of arguments, the constants of classes and `__setstate__`: [`check_script_file`] makes sure
//! that there is nothing in them to run, so that the graphs can be loaded and their operators looked at, and that its storages
//! are no larger than what the archive holds.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use crate::job::storages::check_storages;

/// Whether an operator, such as `aten::add` or `prim::If`, computes and does nothing else.
pub fn is_pure_operator(name: &str) -> bool {
    let known = pure_operators();
    known.contains(name)
        || name
            .strip_suffix('_')
            .is_some_and(|functional| known.contains(functional))
}

fn pure_operators() -> &'static HashSet<String> {
    static KNOWN: OnceLock<HashSet<String>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let lines = include_str!("pure_operators.txt").lines();
        let mut namespace = "";
        let mut known = HashSet::new();
        for line in lines.filter(|line| !line.starts_with('#')) {
            if line.ends_with("::") {
                namespace = line;
            } else {
                let names = line.split_ascii_whitespace();
                known.extend(names.map(|name| format!("{namespace}{name}")));
            }
        }
        known
    })
}

/// Refuses a file of a TorchScript archive, or of one of `torch.save`, that has code for the load itself to run, or storages
/// that are larger than what the archive holds of them. `name` is that in the archive; files other than sources, pickles
/// and JSON hold neither. `sizes` has the bytes of each file of the archive by its name in lower case, the least where several
/// have that name.
///
/// # Errors
///
/// What there is to run, or which storage it is.
pub fn check_script_file(
    name: &str,
    bytes: &[u8],
    sizes: &HashMap<String, u64>,
) -> Result<(), String> {
    // Names in archives are found whatever their case.
    let lower = name.to_ascii_lowercase();
    let found = if lower == "model.json" {
        Err("it is of a format before torch 1.4".to_string())
    } else if lower.ends_with(".py") {
        check_source(bytes)
    } else if lower.ends_with(".pkl") && has(bytes, b"torch.classes") {
        Err("it holds an object of a class of C++".to_string())
    } else if lower == "data.pkl" || lower == "constants.pkl" {
        let folder = lower.trim_end_matches(".pkl");
        check_storages(bytes, |key| {
            sizes
                .get(&format!("{folder}/{key}").to_ascii_lowercase())
                .copied()
        })
    } else {
        Ok(())
    };
    found.map_err(|reason| format!("{name}: {reason}"))
}

fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// What a source consists of, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a [u8]),
    Number,
    Text,
    /// A byte of punctuation.
    Mark(u8),
    EndOfLine,
}

/// The words that are values by themselves.
const VALUES: [&[u8]; 7] = [b"None", b"True", b"False", b"inf", b"nan", b"infj", b"nanj"];

fn check_source(source: &[u8]) -> Result<(), String> {
    let tokens = tokens(source)?;
    for (index, token) in tokens.iter().enumerate() {
        let rest = &tokens[index + 1..];
        match token {
            Token::Word(b"__setstate__") => {
                return Err("it has a __setstate__, which a load runs".into());
            }
            Token::Word(b"def") => check_defaults(rest)?,
            Token::Word(b"Final") => check_constant(rest)?,
            _ => {}
        }
    }
    Ok(())
}

/// Refuses defaults that are no literals, in what follows a `def`.
fn check_defaults(tokens: &[Token<'_>]) -> Result<(), String> {
    let mut depth = 0;
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token {
            Token::Mark(b'(' | b'[' | b'{') => depth += 1,
            Token::Mark(b')' | b']' | b'}') => depth -= 1,
            Token::Mark(b'=') => {
                index += 1 + literal(&tokens[index + 1..], false).ok_or(
                    "a default of one of its functions is no literal, and a load computes it",
                )?;
                continue;
            }
            Token::Mark(b':') if depth == 0 => break,
            _ => {}
        }
        index += 1;
    }
    Ok(())
}

/// Refuses a constant of a class that is no literal, in what follows its `Final`.
fn check_constant(tokens: &[Token<'_>]) -> Result<(), String> {
    let line = tokens.split(|token| *token == Token::EndOfLine).next();
    let line = line.unwrap_or_default();
    let value = line.iter().position(|token| *token == Token::Mark(b'='));
    let is_literal = value.is_none_or(|index| {
        let value = &tokens[index + 1..];
        literal(value, true)
            .is_some_and(|length| matches!(value.get(length), None | Some(Token::EndOfLine)))
    });
    match is_literal {
        true => Ok(()),
        false => {
            Err("a constant of one of its classes is no literal, and a load computes it".into())
        }
    }
}

/// The number of tokens of a literal at the start: numbers, texts, constants of the archive, and lists, tuples and dicts of
/// them. `None` where something else is in it. `ends_with_line` says whether a line's end ends it outside of brackets.
fn literal(tokens: &[Token<'_>], ends_with_line: bool) -> Option<usize> {
    let mut depth = 0;
    let mut before = None;
    for (index, token) in tokens.iter().enumerate() {
        let after_value = matches!(
            before,
            Some(Token::Word(_) | Token::Number | Token::Text | Token::Mark(b')' | b']' | b'}'))
        );
        match token {
            Token::Mark(b')' | b']' | b'}') if depth == 0 => return Some(index),
            Token::Mark(b',') if depth == 0 => return Some(index),
            Token::EndOfLine if depth == 0 && ends_with_line => return Some(index),
            Token::Mark(b')' | b']' | b'}') => depth -= 1,
            // After a value these would be a call, or take an element.
            Token::Mark(b'(' | b'[' | b'{') if !after_value => depth += 1,
            Token::Mark(b',' | b'-') | Token::Number | Token::Text | Token::EndOfLine => {}
            Token::Mark(b':') if depth > 0 => {}
            Token::Mark(b'.') if before == Some(Token::Word(b"CONSTANTS")) => {}
            Token::Word(b"CONSTANTS") => {}
            Token::Word(_) if before == Some(Token::Mark(b'.')) => {}
            Token::Word(word) if VALUES.contains(word) => {}
            _ => return None,
        }
        if *token != Token::EndOfLine {
            before = Some(*token);
        }
    }
    Some(tokens.len())
}

/// Reads a source as TorchScript's lexer does.
fn tokens(source: &[u8]) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = vec![];
    let mut at = 0;
    while let Some(&byte) = source.get(at) {
        let length = |is: fn(&u8) -> bool| {
            let rest = &source[at..];
            rest.iter().position(|byte| !is(byte)).unwrap_or(rest.len())
        };
        match byte {
            b'\n' => {
                tokens.push(Token::EndOfLine);
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 11 | 12 => at += 1,
            b'#' => at += length(|byte| *byte != b'\n'),
            b'\'' | b'"' => {
                at += text(&source[at..]).ok_or("a text in it has no end")?;
                tokens.push(Token::Text);
            }
            b'0'..=b'9' => {
                at += length(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
                tokens.push(Token::Number);
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
                let length = length(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
                tokens.push(Token::Word(&source[at..at + length]));
                at += length;
            }
            // Torch writes none: lines that go on, and letters whose meaning is the lexer's.
            b'\\' | 0 | 128.. => return Err(format!("it holds the byte {byte}")),
            other => {
                tokens.push(Token::Mark(other));
                at += 1;
            }
        }
    }
    Ok(tokens)
}

/// The length of a text with its quotation marks; `None` where it has no end.
fn text(source: &[u8]) -> Option<usize> {
    let quote = source[0];
    let triple = [quote; 3];
    let width = if source.starts_with(&triple) { 3 } else { 1 };
    let mut at = width;
    loop {
        match *source.get(at)? {
            b'\\' => at += 2,
            b'\n' if width == 1 => return None,
            _ if source[at..].starts_with(&triple[..width]) => return Some(at + width),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_that_do_more_than_compute_are_not_pure() {
        for name in [
            "aten::add",
            "aten::add_",
            "aten::linear",
            "aten::__getitem__",
            "aten::_convolution",
            "aten::size",
            "prim::If",
            "prim::Constant",
            "aten::zero_",
        ] {
            assert!(is_pure_operator(name), "{name}");
        }
        for name in [
            "aten::from_file",
            "aten::save",
            "aten::set_",
            "aten::set_data",
            "aten::resize_",
            "aten::manual_seed",
            "aten::_unsafe_index",
            "prim::PythonOp",
            "prim::Print",
            "prim::rpc_sync",
            "profiler::_record_function_enter",
            "torchvision::nms",
            "add",
            "aten::",
            "",
            "prim::add",
            "aten",
            "aten::# On tensors.",
        ] {
            assert!(!is_pure_operator(name), "{name}");
        }
    }

    fn source(text: &str) -> Result<(), String> {
        check_script_file("code/__torch__.py", text.as_bytes(), &HashMap::new())
    }

    #[test]
    fn what_torch_writes_is_read() {
        source(
            r#"class Net(Module):
  __parameters__ = ["weight", ]
  weight : Tensor
  k : Final[List[int]] = [1, -2]
  pad : Final[str] = "a(b)"
  fc : __torch__.torch.nn.modules.linear.Linear
  def forward(self: __torch__.Net,
    x: Tensor,
    mask: Optional[Tensor]=None,
    scale: float=-1.5e-05,
    big: float=inf,
    sizes: Tuple[int, List[int]]=(1, [2, 3], ),
    t: Optional[Tensor]=CONSTANTS.c0) -> Dict[str, Tensor]:
    _0 = torch.add(x, torch.neg(x), alpha=1)  # def f(x=torch.save())
    return {"a": (self.fc).forward(_0, )}
"#,
        )
        .unwrap();
        check_script_file("data/0", b"torch.classes def f(x=g()):", &HashMap::new()).unwrap();
    }

    #[test]
    fn what_a_load_would_run_is_refused() {
        for (text, reason) in [
            (
                "class A:\n  def __setstate__(self, s: int) -> None:\n    pass\n",
                "__setstate__",
            ),
            ("def f(x: Any=torch.save(1, 'f')) -> None:\n", "a default"),
            ("def f(x: int=1, y: Any=[g(1)]) -> None:\n", "a default"),
            ("def f(x: Any=(g)(1)) -> None:\n", "a default"),
            ("def f(x: Any=CONSTANTS.c0[1]) -> None:\n", "a default"),
            ("def f(x: Any=CONSTANTS.c0 + 1) -> None:\n", "a default"),
            ("def f(x: Any=\"s\".join(1)) -> None:\n", "a default"),
            ("def f(x: Any=1\n + g(1)) -> None:\n", "a default"),
            (
                "def f(x: Any=1\n  , y: Any=torch.rand(1)) -> None:\n",
                "a default",
            ),
            (
                "class A:\n  x : Final[int] = torch.save(1, 'f')\n",
                "a constant",
            ),
            ("class A:\n  x : Final[int] = [\n  g(1)]\n", "a constant"),
            ("class A:\n  x : Final[int] = 1, g(1)\n", "a constant"),
            ("x = 'unfinished", "no end"),
            ("x = 1 \\\n + 1", "byte 92"),
        ] {
            let found = source(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
        for (name, bytes) in [
            ("model.json", b"{}".as_slice()),
            ("data.pkl", b"c__torch__.torch.classes.quantized\nX\n"),
            ("CODE/A.PY", b"def f(x=g()):"),
        ] {
            check_script_file(name, bytes, &HashMap::new()).unwrap_err();
        }
    }
}
