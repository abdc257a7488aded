import java.nio.channels.Selector;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** Waits of Java, each of as many milliseconds as the argument says; prints each one's name and how long it took, in microseconds. */
class Waits {
    interface Wait {
        void run() throws Exception;
    }

    static void took(String name, Wait wait) throws Exception {
        long begun = System.nanoTime();
        wait.run();
        System.out.println(name + " " + (System.nanoTime() - begun) / 1000);
    }

    public static void main(String[] arguments) throws Exception {
        long ms = Long.parseLong(arguments[0]);
        Object monitor = new Object();
        took("sleep", () -> Thread.sleep(ms));
        took("wait", () -> {
            synchronized (monitor) {
                monitor.wait(ms);
            }
        });
        took("park", () -> LockSupport.parkNanos(ms * 1_000_000));
        took("park_until", () -> LockSupport.parkUntil(System.currentTimeMillis() + ms + 1));
        took("latch", () -> new CountDownLatch(1).await(ms, TimeUnit.MILLISECONDS));
        took("select", () -> Selector.open().select(ms));
        var executor = Executors.newSingleThreadScheduledExecutor();
        took("schedule", () -> executor.schedule(() -> 1, ms, TimeUnit.MILLISECONDS).get());
        executor.shutdown();
        long begun = System.currentTimeMillis();
        Thread.sleep(ms);
        System.out.println("current_time " + (System.currentTimeMillis() - begun + 1) * 1000);
    }
}
