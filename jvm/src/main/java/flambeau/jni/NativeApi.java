package flambeau.jni;

import java.nio.ByteBuffer;

/**
 * The functions of {@code libflambeau_jni.so}. {@code NativeLibrary.api} gives the instance, once the library is loaded.
 *
 * <p>Any thread may call any of them, several at once too. What fails ends in an exception with its causes:
 * {@code flambeau.ParamException} for a program that makes no sense, {@code flambeau.DataException} for rows,
 * {@code flambeau.StoreException} for files, {@code flambeau.GeneralException} for everything else.
 *
 * <p>{@code storeJson} is a JSON object of strings: the options of the object stores, as in the job's {@code store}; {@code
 * {}} where there are none. A path is a local one, {@code /Volumes}, {@code dbfs:}, {@code s3:}, {@code s3a:}, {@code
 * abfss:} or {@code gs:}.
 */
public final class NativeApi {
  NativeApi() {}

  /**
   * Refuses, as a {@code flambeau.ParamException}, a program or a loss that could do more than compute. Nothing of it is run.
   *
   * @param form {@code scripted} or {@code exported}
   * @param program a local path
   */
  public native void checkPure(String form, String program);

  /**
   * Asks the supervisor (native/supervisor) a question about attempts, runs, restarts or what lies in a work directory.
   *
   * @param question JSON with the question's name as {@code ask}
   * @return the answer, JSON
   */
  public native String supervise(String storeJson, String workDir, String question);

  /** The bytes of a file. */
  public native byte[] storeGet(String storeJson, String uri);

  /** Writes a file whole, with the directories above it. */
  public native void storePut(String storeJson, String uri, byte[] bytes);

  /** Copies a file to a local one. */
  public native void storeGetToFile(String storeJson, String uri, String local);

  /** Copies a local file to {@code uri}. */
  public native void storePutFile(String storeJson, String uri, String local);

  /** The size of a file in bytes; -1 where there is none. */
  public native long storeSize(String storeJson, String uri);

  /** Removes a directory with all that is in it; one that is not there is no error. */
  public native void storeDeletePrefix(String storeJson, String directory);

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
   *     "batchSize","classes","fields","numThreads","gpu"}}. {@code program} and {@code weights} (or null) are local paths.
   *     {@code classes} is null, or how a classifier's output reads: {@code logits}, {@code log_probabilities} or {@code
   *     probabilities}; {@code fields} are then the wanted ones of {@code prediction}, {@code rawPrediction} and {@code
   *     probability}. {@code gpu} is the number of one of {@link #gpus}, or null for the CPU
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

  /** Frees a scorer, after the calls that run with it. A handle that is closed already is an error. */
  public native void closeScorer(long handle);
}
