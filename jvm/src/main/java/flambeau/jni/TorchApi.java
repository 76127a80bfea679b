package flambeau.jni;

import java.nio.ByteBuffer;

/**
 * The functions of {@code libflambeau_jni_torch.so}, over libtorch. {@code NativeLibrary.torch} gives the instance, once libtorch
 * and the library are loaded.
 *
 * <p>Any thread may call any of them, several at once too. What fails ends in an exception with its causes:
 * {@code flambeau.ParamException} for a program that makes no sense, {@code flambeau.DataException} for rows,
 * {@code flambeau.StoreException} for files, {@code flambeau.GeneralException} for everything else.
 */
public final class TorchApi {
  TorchApi() {}

  /**
   * Refuses, as a {@code flambeau.ParamException}, a program or a loss that could do more than compute. Nothing of it is run.
   *
   * @param form {@code scripted} or {@code exported}
   * @param program a local path
   */
  public native void checkPure(String form, String program);

  /**
   * The GPUs that this process sees, by their UUIDs and in the order of their numbers.
   *
   * @return JSON {@code {"uuids":["GPU-..."],"obstacle"}}; {@code obstacle} says why libtorch computes on none of them, and is
   *     null where it does
   */
  public native String gpus();

  /**
   * Loads a program for scoring.
   *
   * @param specJson {@code {"form","program","weights","inputs":[{"dtype","shape"}],"output":[{"name","dtype","shape"}],
   *     "batchSize","classes","fields","judged","numThreads","gpu"}}. {@code program} and {@code weights} (or null) are local paths.
   *     {@code classes} is null, or how a classifier's output reads: {@code logits}, {@code log_probabilities} or {@code
   *     probabilities}; {@code fields} are then the wanted ones of {@code prediction}, {@code rawPrediction} and {@code
   *     probability}. {@code judged}, null where there is nothing to hold outputs against, is {@code {"labels":[{"dtype","shape"}],
   *     "weight":{"dtype","shape"} or null,"by":{"loss","metrics"}}} for {@link #sums}. {@code gpu} is the number of one of {@link #gpus}, or null for the CPU
   * @return a handle for {@link #score}, to be given to {@link #closeScorer} once
   */
  public native long openScorer(String specJson);

  /**
   * Scores rows.
   *
   * @param inputs one direct buffer in native byte order for each input, from position 0, row after row; read
   *     before the call returns
   * @return one array for each field or output tensor, row after row: {@code double[]} for single numbers and a classifier's
   *     fields, else {@code float[]}, {@code double[]}, {@code long[]} or {@code boolean[]}
   */
  public native Object[] score(long handle, int numRows, ByteBuffer[] inputs);

  /**
   * What rows add to the sums that the loss and the metrics of a scorer are made of.
   *
   * @param tensors as the inputs of {@link #score}, then a buffer for each label, and one for the weight where there is one
   * @return float64 sums for {@link #figures}, which add up over calls; none of no rows
   */
  public native double[] sums(long handle, int numRows, ByteBuffer[] tensors);

  /**
   * A loss and metrics from their sums over all rows; of no sums, whether they are known.
   *
   * @param judge {@code {"loss","metrics"}}, as {@link #openScorer} has it
   * @return JSON {@code [["loss",0.5],["mae",null],...]}; null is no finite number
   */
  public native String figures(String judge, double[] sums);

  /** Rows that a scorer runs its program on at once: its {@code batchSize}, halved as often as memory ran out. */
  public native int rowsAtOnce(long handle);

  /** Frees a scorer, after the calls that run with it. A handle that is closed already is an error. */
  public native void closeScorer(long handle);
}
