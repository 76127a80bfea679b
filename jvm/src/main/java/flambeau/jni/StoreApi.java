package flambeau.jni;

/**
 * The functions of {@code libflambeau_jni_store.so}, which needs no libtorch, and which {@code libflambeau_jni_torch.so} has too.
 * {@code NativeLibrary.store} gives the instance, once one of them is loaded.
 *
 * <p>Any thread may call any of them, several at once too. What fails ends in an exception with its causes:
 * {@code flambeau.StoreException} for files, {@code flambeau.DataException} for what lies in them, {@code
 * flambeau.ParamException} for a question that the supervisor refuses, {@code flambeau.GeneralException} for everything else.
 *
 * <p>{@code storeJson} is a JSON object of strings: the options of the object stores, as in the job's {@code store}; {@code
 * {}} where there are none. A path is a local one, {@code /Volumes}, {@code dbfs:}, {@code s3:}, {@code s3a:}, {@code
 * abfss:} or {@code gs:}.
 */
public final class StoreApi {
  StoreApi() {}

  /**
   * Asks the supervisor (native/supervisor) a question about attempts, runs, restarts or what lies in a work directory.
   *
   * @param question JSON with the question's name as {@code ask}
   * @return the answer, JSON
   */
  public native String supervise(String storeJson, String workDir, String question);

  /** The bytes of a file. */
  public native byte[] get(String storeJson, String uri);

  /** Writes a file whole, with the directories above it. */
  public native void put(String storeJson, String uri, byte[] bytes);

  /** Copies a file to a local one. */
  public native void getToFile(String storeJson, String uri, String local);

  /** Copies a local file to {@code uri}. */
  public native void putFile(String storeJson, String uri, String local);

  /** The size of a file in bytes; -1 where there is none. */
  public native long size(String storeJson, String uri);

  /** The URIs of all files below a directory, sorted, as a JSON array; none where there is no such directory. */
  public native String list(String storeJson, String directory);

  /** Removes a directory with all that is in it; one that is not there is no error. */
  public native void deletePrefix(String storeJson, String directory);
}
