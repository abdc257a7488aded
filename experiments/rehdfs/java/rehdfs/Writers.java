package rehdfs;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;

/**
 * Writers of one rack, in the way of DFSIO: each writes one file, all at once, and times it from its creation to its close.
 *
 * <p>Arguments: number of the rack, of its writers, and bytes of a file. Says {@code ready}, and then obeys words on standard
 * input. {@code write}: writes, and says {@code wrote WRITER BEGIN_NS END_NS} for each file, by the machine's monotonic clock,
 * then {@code written}. {@code read}: reads all files back, compares each byte, and says {@code read BYTES}.
 */
public final class Writers {
  private static final int PATTERN_BYTES = 1 << 20;
  private static final int WRITE_BYTES = 1 << 16;

  private final FileSystem files;
  private final int rack;
  private final int writers;
  private final long fileBytes;

  private Writers(FileSystem files, int rack, int writers, long fileBytes) {
    this.files = files;
    this.rack = rack;
    this.writers = writers;
    this.fileBytes = fileBytes;
  }

  public static void main(String[] args) throws Exception {
    FileSystem files = FileSystem.get(new HdfsConfiguration());
    Writers self =
        new Writers(files, Integer.parseInt(args[0]), Integer.parseInt(args[1]), Long.parseLong(args[2]));
    files.mkdirs(self.folder());
    System.out.println("ready");
    BufferedReader words = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    for (String word = words.readLine(); word != null; word = words.readLine()) {
      switch (word) {
        case "write" -> self.write();
        case "read" -> self.read();
        default -> throw new IllegalArgumentException(word + ": write or read");
      }
    }
  }

  private Path folder() {
    return new Path("/from-rack" + rack);
  }

  private Path file(int writer) {
    return new Path(folder(), "file" + writer);
  }

  /** Contents of a writer's file, repeated to its end. */
  private byte[] pattern(int writer) {
    byte[] pattern = new byte[PATTERN_BYTES];
    new Random(1_000L * rack + writer).nextBytes(pattern);
    return pattern;
  }

  private void write() throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(writers);
    List<Future<String>> written = new ArrayList<>();
    for (int writer = 0; writer < writers; writer++) {
      int number = writer;
      byte[] pattern = pattern(writer);
      written.add(pool.submit(() -> write(number, pattern)));
    }
    for (Future<String> one : written) {
      System.out.println(one.get());
    }
    pool.shutdown();
    System.out.println("written");
  }

  private String write(int writer, byte[] pattern) throws IOException {
    long begin = System.nanoTime();
    try (FSDataOutputStream out = files.create(file(writer))) {
      for (long at = 0; at < fileBytes; at += WRITE_BYTES) {
        out.write(pattern, (int) (at % PATTERN_BYTES), (int) Math.min(WRITE_BYTES, fileBytes - at));
      }
    }
    return "wrote " + writer + " " + begin + " " + System.nanoTime();
  }

  private void read() throws IOException {
    byte[] found = new byte[WRITE_BYTES];
    long bytes = 0;
    for (int writer = 0; writer < writers; writer++) {
      byte[] pattern = pattern(writer);
      try (FSDataInputStream in = files.open(file(writer))) {
        for (long at = 0; at < fileBytes; at += WRITE_BYTES) {
          int part = (int) Math.min(WRITE_BYTES, fileBytes - at);
          int from = (int) (at % PATTERN_BYTES);
          in.readFully(found, 0, part);
          if (!Arrays.equals(found, 0, part, pattern, from, from + part)) {
            throw new IOException(file(writer) + ": other bytes than written, from byte " + at);
          }
          bytes += part;
        }
        if (in.read() >= 0) {
          throw new IOException(file(writer) + ": longer than written");
        }
      }
    }
    System.out.println("read " + bytes);
  }
}
