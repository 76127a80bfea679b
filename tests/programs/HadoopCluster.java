import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;

/**
 * A cluster of HDFS's and YARN's in this process, until its standard input ends.
 *
 * <p>Arguments: a directory for all that it writes. Once it is up, it writes `conf/` there, which HADOOP_CONF_DIR names, and
 * prints "up".
 */
public final class HadoopCluster {
  private static final int NODES = 2;
  private static final int MEGABYTES = 4096;

  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[0]);
    Configuration hdfs = new Configuration();
    hdfs.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(directory, "hdfs").getPath());
    try (MiniDFSCluster files = new MiniDFSCluster.Builder(hdfs).numDataNodes(NODES).build()) {
      files.waitActive();
      YarnConfiguration conf = new YarnConfiguration(hdfs);
      conf.set("fs.defaultFS", files.getFileSystem().getUri().toString());
      conf.setInt(YarnConfiguration.YARN_MINICLUSTER_NM_PMEM_MB, MEGABYTES);
      conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 256);
      conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
      // The default has its queues in a file.
      conf.setClass(YarnConfiguration.RM_SCHEDULER, FifoScheduler.class, ResourceScheduler.class);
      // A machine of tests is rarely nine tenths empty.
      conf.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 99.9f);
      System.setProperty("test.build.data", new File(directory, "yarn").getPath());
      MiniYARNCluster yarn = new MiniYARNCluster("cluster", NODES, 1, 1);
      try {
        yarn.init(conf);
        yarn.start();
        Configuration client = new Configuration(yarn.getConfig());
        // The cluster's own is a class of its tests.
        client.set("net.topology.node.switch.mapping.impl", "org.apache.hadoop.net.ScriptBasedMapping");
        File to = new File(directory, "conf");
        to.mkdirs();
        for (String name : new String[] {"core-site.xml", "yarn-site.xml"})
          try (OutputStream file = new FileOutputStream(new File(to, name))) {
            client.writeXml(file);
          }
        System.out.println("up");
        while (System.in.read() >= 0) {}
      } finally {
        yarn.stop();
      }
    }
  }
}
