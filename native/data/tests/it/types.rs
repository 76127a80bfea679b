//! Every type that becomes a tensor, against the arrays that were written.

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, Float64Builder, Int32Builder, Int64Builder,
    LargeListBuilder, ListBuilder,
};
use arrow_array::types::Float16Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, LargeBinaryArray, PrimitiveArray, StructArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow_schema::Field;
use flambeau_data::{
    Batch, BatchReader, DType, DataError, DataFile, DatasetSpec, Manifest, OrderConfig,
    ReaderOptions, SampleOrder, TensorSpec,
};
use half::f16;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterVersion};

use crate::fixtures::{
    order_config, read_all, single, small_pages, store, tensor, write, write_with,
};

fn read(array: ArrayRef, dtype: DType) -> Batch {
    read_shaped(array, dtype, None)
}

/// Reads one column back, from several row groups.
fn read_shaped(array: ArrayRef, dtype: DType, shape: Option<Vec<usize>>) -> Batch {
    let directory = tempfile::tempdir().unwrap();
    let uri = write(directory.path(), "a.parquet", &[("c", array)], 2);
    let mut spec = single("c", dtype);
    spec.inputs[0].shape = shape;
    read_all(&[uri], &spec).unwrap()
}

#[test]
fn numbers_become_floats() {
    let expected = [0f32, 1., 2., 100., 7.];
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int8Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(Int16Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(Int32Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(Int64Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(UInt8Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(UInt16Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(UInt32Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(UInt64Array::from(vec![0, 1, 2, 100, 7])),
        Arc::new(Float32Array::from(vec![0., 1., 2., 100., 7.])),
        Arc::new(Float64Array::from(vec![0., 1., 2., 100., 7.])),
        Arc::new(PrimitiveArray::<Float16Type>::from_iter_values(
            [0., 1., 2., 100., 7.].map(f16::from_f32),
        )),
        Arc::new(
            Decimal128Array::from(vec![0, 100, 200, 10000, 700])
                .with_precision_and_scale(7, 2)
                .unwrap(),
        ),
        Arc::new(
            Decimal128Array::from(vec![0, 100, 200, 10000, 700])
                .with_precision_and_scale(15, 2)
                .unwrap(),
        ),
        Arc::new(
            Decimal128Array::from(vec![0, 100, 200, 10000, 700])
                .with_precision_and_scale(30, 2)
                .unwrap(),
        ),
    ];
    for array in arrays {
        let name = format!("{:?}", array.data_type());
        let batch = read(array.clone(), DType::Float32);
        assert_eq!(batch.inputs[0].as_slice::<f32>(), expected, "{name}");
        assert_eq!(batch.inputs[0].shape(), [5], "{name}");
        let doubles = read(array.clone(), DType::Float64);
        assert_eq!(
            doubles.inputs[0].as_slice::<f64>(),
            expected.map(f64::from),
            "{name}"
        );
        let whole = read(array, DType::Int64);
        assert_eq!(
            whole.inputs[0].as_slice::<i64>(),
            [0, 1, 2, 100, 7],
            "{name}"
        );
    }
}

#[test]
fn floats_keep_their_bits_and_doubles_round() {
    let odd = [f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE / 2.0];
    let batch = read(Arc::new(Float32Array::from(odd.to_vec())), DType::Float32);
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(batch.inputs[0].as_slice()), bits(&odd));
    let batch = read(
        Arc::new(Float64Array::from(vec![0.1, 1e300, f64::NAN])),
        DType::Float32,
    );
    let found = batch.inputs[0].as_slice::<f32>();
    assert_eq!(found[..2], [0.1f32, f32::INFINITY]);
    assert!(found[2].is_nan());
    let decimal = Decimal128Array::from(vec![12345, -1])
        .with_precision_and_scale(20, 3)
        .unwrap();
    assert_eq!(
        read(Arc::new(decimal), DType::Float64).inputs[0].as_slice::<f64>(),
        [12.345, -0.001]
    );
}

#[test]
fn long_integers_are_exact() {
    let values = vec![i64::MIN, -1, (1 << 53) + 1, i64::MAX];
    let batch = read(Arc::new(Int64Array::from(values.clone())), DType::Int64);
    assert_eq!(batch.inputs[0].as_slice::<i64>(), values);
    let decimal = Decimal128Array::from(vec![90071992547409930, -10])
        .with_precision_and_scale(38, 1)
        .unwrap();
    assert_eq!(
        read(Arc::new(decimal), DType::Int64).inputs[0].as_slice::<i64>(),
        [9007199254740993, -1]
    );
}

#[test]
fn booleans_and_bytes() {
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
    let bools = read(flags.clone(), DType::Bool);
    assert_eq!(
        (bools.inputs[0].as_bytes(), bools.inputs[0].dtype()),
        (&[1u8, 0, 1][..], DType::Bool)
    );
    assert_eq!(
        read(flags.clone(), DType::Float32).inputs[0].as_slice::<f32>(),
        [1., 0., 1.]
    );
    assert_eq!(
        read(flags, DType::Int64).inputs[0].as_slice::<i64>(),
        [1, 0, 1]
    );
    let zero_one: ArrayRef = Arc::new(Int32Array::from(vec![0, 1]));
    assert_eq!(read(zero_one, DType::Bool).inputs[0].as_bytes(), [0, 1]);
    let small: ArrayRef = Arc::new(Int64Array::from(vec![0, 255]));
    assert_eq!(read(small, DType::UInt8).inputs[0].as_bytes(), [0, 255]);
}

#[test]
fn binary_becomes_bytes_with_a_shape() {
    let rows: Vec<&[u8]> = vec![b"abcdef", b"ghijkl", b"mnopqr"];
    let fixed = FixedSizeBinaryArray::try_from_iter(rows.iter()).unwrap();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(BinaryArray::from(rows.clone())),
        Arc::new(LargeBinaryArray::from(rows.clone())),
        Arc::new(fixed),
    ];
    for array in arrays {
        let batch = read(array.clone(), DType::UInt8);
        assert_eq!(batch.inputs[0].shape(), [3, 6]);
        assert_eq!(batch.inputs[0].as_bytes(), b"abcdefghijklmnopqr");
        assert_eq!(
            read_shaped(array, DType::UInt8, Some(vec![2, 3])).inputs[0].shape(),
            [3, 2, 3]
        );
    }
}

#[test]
fn dictionaries_are_read_as_their_values() {
    let values: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5]));
    let dictionary = DictionaryArray::new(Int32Array::from(vec![1, 0, 1]), values);
    assert_eq!(
        read(Arc::new(dictionary), DType::Float64).inputs[0].as_slice::<f64>(),
        [1.5, 0.5, 1.5]
    );
}

#[test]
fn arrays_of_every_kind_of_list() {
    let mut list = ListBuilder::new(Float32Builder::new());
    let mut large = LargeListBuilder::new(Float32Builder::new());
    let mut fixed = FixedSizeListBuilder::new(Float32Builder::new(), 3);
    for row in 0..7 {
        let values = [row as f32, row as f32 + 0.5, -1.0];
        list.values().append_slice(&values);
        list.append(true);
        large.values().append_slice(&values);
        large.append(true);
        fixed.values().append_slice(&values);
        fixed.append(true);
    }
    let expected: Vec<f32> = (0..7)
        .flat_map(|row| [row as f32, row as f32 + 0.5, -1.0])
        .collect();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(list.finish()),
        Arc::new(large.finish()),
        Arc::new(fixed.finish()),
    ];
    for array in arrays {
        let batch = read(array.clone(), DType::Float32);
        assert_eq!(batch.inputs[0].shape(), [7, 3]);
        assert_eq!(batch.inputs[0].as_slice::<f32>(), expected);
        assert_eq!(
            read_shaped(array, DType::Float32, Some(vec![3, 1])).inputs[0].shape(),
            [7, 3, 1]
        );
    }
}

#[test]
fn nested_arrays_keep_their_shape() {
    let mut matrix = ListBuilder::new(ListBuilder::new(Int64Builder::new()));
    for row in 0..5 {
        for line in 0..2 {
            matrix.values().values().append_slice(&[
                row * 6 + line * 3,
                row * 6 + line * 3 + 1,
                row * 6 + line * 3 + 2,
            ]);
            matrix.values().append(true);
        }
        matrix.append(true);
    }
    let batch = read(Arc::new(matrix.finish()), DType::Int64);
    assert_eq!(batch.inputs[0].shape(), [5, 2, 3]);
    assert_eq!(
        batch.inputs[0].as_slice::<i64>(),
        (0..30).collect::<Vec<_>>()
    );
}

/// The type (1: dense, 0: sparse), size, indices and values of a vector.
pub type Vector<'a> = (i8, Option<i32>, &'a [i32], &'a [f64]);

/// Spark ML's VectorUDT, as Spark lays it out.
pub fn vectors(rows: &[Vector]) -> ArrayRef {
    let mut indices = ListBuilder::new(Int32Builder::new());
    let mut values = ListBuilder::new(Float64Builder::new());
    for (kind, _, places, numbers) in rows {
        indices.values().append_slice(places);
        indices.append(*kind == 0);
        values.values().append_slice(numbers);
        values.append(true);
    }
    let fields: Vec<(&str, ArrayRef)> = vec![
        (
            "type",
            Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int8Array>()),
        ),
        (
            "size",
            Arc::new(rows.iter().map(|row| row.1).collect::<Int32Array>()),
        ),
        ("indices", Arc::new(indices.finish())),
        ("values", Arc::new(values.finish())),
    ];
    let fields = fields.into_iter().map(|(name, array)| {
        (
            Arc::new(Field::new(name, array.data_type().clone(), name != "type")),
            array,
        )
    });
    Arc::new(StructArray::from(fields.collect::<Vec<_>>()))
}

#[test]
fn spark_vectors_dense_and_sparse() {
    let array = vectors(&[
        (1, None, &[], &[1., 2., 3.]),
        (0, Some(3), &[0, 2], &[4., 5.]),
        (0, Some(3), &[], &[]),
        (1, None, &[], &[6., 7., 8.]),
    ]);
    let expected = [1f32, 2., 3., 4., 0., 5., 0., 0., 0., 6., 7., 8.];
    let batch = read(array, DType::Float32);
    assert_eq!(batch.inputs[0].shape(), [4, 3]);
    assert_eq!(batch.inputs[0].as_slice::<f32>(), expected);
    let sparse_first = vectors(&[(0, Some(2), &[1], &[4.]), (1, None, &[], &[6., 7.])]);
    assert_eq!(
        read(sparse_first, DType::Float64).inputs[0].as_slice::<f64>(),
        [0., 4., 6., 7.]
    );
}

/// Scalars of several types, an array and a vector next to each other, over more rows than a tile and a batch hold.
#[test]
fn columns_of_many_kinds_are_packed_row_by_row() {
    let num_rows = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let mut list = ListBuilder::new(Float64Builder::new());
    for row in 0..num_rows {
        list.values()
            .append_slice(&[row as f64 + 0.25, row as f64 + 0.5]);
        list.append(true);
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "f",
            Arc::new(Float32Array::from_iter_values(
                (0..num_rows).map(|row| row as f32),
            )),
        ),
        (
            "d",
            Arc::new(Float64Array::from_iter_values(
                (0..num_rows).map(|row| row as f64 / 2.0),
            )),
        ),
        (
            "unused",
            Arc::new(Int32Array::from_iter_values(0..num_rows)),
        ),
        (
            "i",
            Arc::new(Int32Array::from_iter_values(
                (0..num_rows).map(|row| row % 1000),
            )),
        ),
        ("l", Arc::new(list.finish())),
        (
            "b",
            Arc::new(BooleanArray::from_iter(
                (0..num_rows).map(|row| Some(row % 3 == 0)),
            )),
        ),
    ];
    let uri = write(directory.path(), "a.parquet", &columns, 9_000);
    let spec = DatasetSpec {
        inputs: vec![
            tensor("x", &["b", "f", "l", "d", "i"], DType::Float32),
            tensor("i", &["i", "b"], DType::Int64),
        ],
        labels: vec![tensor("y", &["d"], DType::Float32)],
        weight: Some(tensor("w", &["i"], DType::Float32)),
        raw_columns: vec![],
    };
    let batch = read_all(&[uri], &spec).unwrap();
    assert_eq!(batch.inputs[0].shape(), [num_rows as usize, 6]);
    for (row, found) in batch.inputs[0].as_slice::<f32>().chunks(6).enumerate() {
        let at = row as f32;
        assert_eq!(
            found,
            [
                f32::from(row % 3 == 0),
                at,
                at + 0.25,
                at + 0.5,
                at / 2.0,
                (row % 1000) as f32
            ]
        );
    }
    for (row, found) in batch.inputs[1].as_slice::<i64>().chunks(2).enumerate() {
        assert_eq!(found, [row as i64 % 1000, i64::from(row % 3 == 0)]);
    }
    assert_eq!(batch.labels[0].as_slice::<f32>()[19_999], 9_999.5);
    assert_eq!(batch.weight.unwrap().as_slice::<f32>()[1_234], 234.0);
}

#[test]
fn a_manifest_survives_json_with_its_shapes() {
    let directory = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("a", Arc::new(Float64Array::from(vec![0.1 + 0.2, 1.0])))];
    let uri = write(directory.path(), "a.parquet", &columns, 10);
    let manifest = Manifest::read(
        &store(),
        &[DataFile::Whole(uri)],
        &single("a", DType::Float32),
    )
    .unwrap();
    assert_eq!(manifest.spec().inputs[0].shape, Some(vec![]));
    assert_eq!((manifest.num_rows(), manifest.bytes_per_row()), (2, 4));
    let json = serde_json::to_string(&manifest).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
    let spec: TensorSpec =
        serde_json::from_str(r#"{"name":"x","columns":["a"],"dtype":"uint8"}"#).unwrap();
    assert_eq!(spec, tensor("x", &["a"], DType::UInt8));
    assert!(
        serde_json::from_str::<TensorSpec>(
            r#"{"name":"x","columns":[],"dtype":"uint8","shap":[]}"#
        )
        .is_err()
    );
}

/// More columns and rows than are transposed together, of two types, with an array among them.
#[test]
fn many_columns_are_packed_row_by_row() {
    const ROWS: usize = 333;
    let value = |row: usize, column: usize| (row * 100 + column) as f64;
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    let mut expected = vec![Vec::new(); ROWS];
    for column in 0..45 {
        let values = || (0..ROWS).map(move |row| value(row, column));
        let array: ArrayRef = match column {
            20 => {
                let mut builder = ListBuilder::new(Float64Builder::new());
                for value in values() {
                    builder.append_value([Some(value), Some(-value), Some(0.5)]);
                }
                Arc::new(builder.finish())
            }
            odd if odd % 2 == 1 => Arc::new(Int16Array::from_iter_values(
                values().map(|value| value as i16),
            )),
            _ => Arc::new(Float64Array::from_iter_values(values())),
        };
        for (row, value) in values().enumerate() {
            match column {
                20 => expected[row].extend([value, -value, 0.5]),
                odd if odd % 2 == 1 => expected[row].push(f64::from(value as i16)),
                _ => expected[row].push(value),
            }
        }
        columns.push((format!("c{column}"), array));
    }
    let directory = tempfile::tempdir().unwrap();
    let named: Vec<(&str, ArrayRef)> = columns
        .iter()
        .map(|(name, array)| (name.as_str(), array.clone()))
        .collect();
    let uri = write(directory.path(), "a.parquet", &named, 200);
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    for dtype in [DType::Float32, DType::Float64] {
        let spec = DatasetSpec {
            inputs: vec![tensor("x", &names, dtype)],
            labels: vec![],
            weight: None,
            raw_columns: vec![],
        };
        let batch = read_all(std::slice::from_ref(&uri), &spec).unwrap();
        assert_eq!(batch.inputs[0].shape(), [ROWS, 47]);
        let flat = expected.iter().flatten();
        match dtype {
            DType::Float32 => assert_eq!(
                batch.inputs[0].as_slice::<f32>(),
                flat.map(|&value| value as f32).collect::<Vec<_>>()
            ),
            _ => assert_eq!(
                batch.inputs[0].as_slice::<f64>(),
                flat.copied().collect::<Vec<_>>()
            ),
        }
    }
}

/// Lists of `lengths` numbers that count on.
fn float_lists(lengths: impl IntoIterator<Item = usize>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    let mut next = 0;
    for length in lengths {
        builder.append_value((next..next + length).map(|value| Some(value as f32)));
        next += length;
    }
    Arc::new(builder.finish())
}

/// Pages without dictionaries, whose numbers are taken as they lie, in both versions of Parquet's pages and under every codec.
#[test]
fn numbers_without_dictionaries_are_read_back() {
    const ROWS: usize = 1234;
    let directory = tempfile::tempdir().unwrap();
    let numbers = || (0..ROWS).map(|row| row as f64);
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "int",
            Arc::new(Int32Array::from_iter_values(
                numbers().map(|value| value as i32),
            )),
        ),
        (
            "long",
            Arc::new(Int64Array::from_iter_values(
                numbers().map(|value| value as i64),
            )),
        ),
        (
            "float",
            Arc::new(Float32Array::from_iter_values(
                numbers().map(|value| value as f32),
            )),
        ),
        (
            "double",
            Arc::new(Float64Array::from_iter_values(numbers())),
        ),
        ("one", float_lists([1; ROWS])),
        ("seven", float_lists([7; ROWS])),
        ("thousand", float_lists([1000; ROWS])),
    ];
    let spec = DatasetSpec {
        inputs: vec![
            tensor(
                "numbers",
                &["int", "long", "float", "double", "one"],
                DType::Float64,
            ),
            tensor("seven", &["seven"], DType::Float32),
            tensor("thousand", &["thousand"], DType::Float32),
        ],
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    };
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for codec in codecs {
            let properties = small_pages(500)
                .set_dictionary_enabled(false)
                .set_writer_version(version)
                .set_compression(codec)
                .build();
            let uri = write_with(directory.path(), "a.parquet", &columns, properties);
            let batch = read_all(&[uri], &spec).unwrap();
            let expected: Vec<f64> = numbers().flat_map(|value| [value; 5]).collect();
            assert_eq!(batch.inputs[0].as_slice::<f64>(), expected);
            for (input, width) in [(1, 7), (2, 1000)] {
                let expected: Vec<f32> = (0..ROWS * width).map(|value| value as f32).collect();
                assert_eq!(batch.inputs[input].as_slice::<f32>(), expected);
            }
        }
    }
}

/// Of shuffled rows each rank reads parts of row groups: pages that begin before them, with an index of the pages and without.
#[test]
fn parts_of_row_groups_are_read_back() {
    const ROWS: usize = 1234;
    let directory = tempfile::tempdir().unwrap();
    let numbers = Float64Array::from_iter_values((0..ROWS).map(|row| row as f64));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("double", Arc::new(numbers)),
        ("seven", float_lists([7; ROWS])),
    ];
    let spec = DatasetSpec {
        inputs: vec![
            tensor("double", &["double"], DType::Float64),
            tensor("seven", &["seven"], DType::Float32),
        ],
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    };
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for (has_index, has_dictionary, dealt_rows) in [
            (true, false, 0),
            (false, false, 0),
            (true, true, 0),
            (true, false, u64::MAX),
            (false, false, u64::MAX),
            (false, true, u64::MAX),
        ] {
            let properties = small_pages(500)
                .set_dictionary_enabled(has_dictionary)
                .set_writer_version(version)
                .set_offset_index_disabled(!has_index)
                .set_statistics_enabled(EnabledStatistics::Chunk)
                .build();
            let uri = write_with(directory.path(), "a.parquet", &columns, properties);
            let manifest =
                Arc::new(Manifest::read(&store(), &[DataFile::Whole(uri)], &spec).unwrap());
            let config = OrderConfig {
                dealt_rows,
                ..order_config(3, 10)
            };
            let order = Arc::new(SampleOrder::new(&manifest, config).unwrap());
            let mut seen = vec![];
            for rank in 0..3 {
                let options = ReaderOptions::default();
                let mut reader =
                    BatchReader::new(store(), manifest.clone(), order.clone(), rank, 3, options)
                        .unwrap();
                reader.start(0, 0).unwrap();
                while let Some(batch) = reader.next().unwrap() {
                    let ids = &batch.row_ids;
                    let expected: Vec<f64> = ids.iter().map(|&id| id as f64).collect();
                    assert_eq!(batch.inputs[0].as_slice::<f64>(), expected);
                    let expected: Vec<f32> = ids
                        .iter()
                        .flat_map(|&id| (7 * id..7 * id + 7).map(|value| value as f32))
                        .collect();
                    assert_eq!(batch.inputs[1].as_slice::<f32>(), expected);
                    seen.extend_from_slice(ids);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..ROWS as u64).collect::<Vec<_>>());
        }
    }
}

/// What is wrong in a page without a dictionary is found all the same, in its row.
#[test]
fn flaws_are_found_without_dictionaries() {
    let mut holed = ListBuilder::new(Float32Builder::new());
    for row in 0..300 {
        holed.append_value([Some(1.0), (row != 222).then_some(2.0)]);
    }
    let mut absent = ListBuilder::new(Float32Builder::new());
    for row in 0..300 {
        absent.append_option((row != 222).then_some([Some(1.0), Some(2.0)]));
    }
    let uneven =
        |length: usize| float_lists((0..300).map(|row| if row == 222 { length } else { 2 }));
    let scalars = (0..300).map(|row| (row != 222).then_some(1.0));
    let flaws: [(ArrayRef, &str); 6] = [
        (Arc::new(holed.finish()), "null"),
        (Arc::new(absent.finish()), "null"),
        (Arc::new(Float32Array::from_iter(scalars)), "null"),
        (uneven(1), "ragged"),
        (uneven(3), "ragged"),
        (uneven(0), "ragged"),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (array, flaw) in flaws {
        // Statistics would tell of nulls before anything is decoded.
        let properties = small_pages(300)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let uri = write_with(directory.path(), "a.parquet", &[("c", array)], properties);
        let error = read_all(&[uri], &single("c", DType::Float32)).unwrap_err();
        match flaw {
            "null" => assert!(
                matches!(error, DataError::NullValue { row: 222, .. }),
                "{error}"
            ),
            _ => assert!(
                matches!(error, DataError::RaggedArray { row: 222, .. }),
                "{error}"
            ),
        }
    }
}
