package io.tms.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A set of pointers holds what was put into it and nothing else, however they are spread. */
class PointersTest {
  private static void check(Set<Long> held) {
    Pointers pointers = Pointers.of(held.stream().mapToLong(Long::longValue).toArray());
    for (long one : held) {
      for (long by = -1; by <= 1; by++) {
        assertEquals(held.contains(one + by), pointers.holds(one + by), one + " " + by);
      }
    }
    for (long one : new long[] {0, -1, 1, Long.MIN_VALUE, Long.MAX_VALUE}) {
      assertEquals(held.contains(one), pointers.holds(one), "of " + held.size());
    }
  }

  @Test
  void anEmptySetHoldsNothing() {
    assertFalse(Pointers.of(new long[0]).holds(0));
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3, 100, 10_000})
  void pointersOfTimesAreFound(int count) {
    Random random = new Random(count);
    Set<Long> held = new TreeSet<>();
    for (int i = 0; i < count; i++) {
      held.add((Blocks.NOW + random.nextInt(100_000)) * Blocks.POINTERS_PER_MS + i % 3);
    }
    check(held);
  }

  @Test
  void pointersInHeapsAtBothEndsAreFound() {
    Set<Long> held = new TreeSet<>();
    for (long i = 0; i < 1000; i++) {
      held.add(i);
      held.add(Long.MAX_VALUE - i);
    }
    check(held);
    held.add(Long.MIN_VALUE);
    check(held);
    check(Set.of(Long.MIN_VALUE, Long.MAX_VALUE));
    check(Set.of(Long.MAX_VALUE));
    check(Set.of(0L, Long.MAX_VALUE));
  }

  @Test
  void pointersThatAreNotInOrderOrTwiceAreFound() {
    Pointers pointers = Pointers.of(new long[] {5, 3, 9, 3, 5});
    for (long one = 0; one < 12; one++) {
      assertEquals(one == 3 || one == 5 || one == 9, pointers.holds(one), "of " + one);
    }
  }
}
