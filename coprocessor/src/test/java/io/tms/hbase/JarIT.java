package io.tms.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.jar.Attributes;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.junit.jupiter.api.Test;

/** The jar that is deployed. */
class JarIT {
  private static final int JAVA_8 = 52;

  @Test
  void itHoldsOurClassesAndNothingElseAndSaysItsVersion() throws IOException {
    File file = new File(System.getProperty("tms.jar"));
    assertEquals("tms-coprocessor-" + Version.NAME + ".jar", file.getName());
    try (JarFile jar = new JarFile(file)) {
      List<JarEntry> files = jar.stream().filter(entry -> !entry.isDirectory()).toList();
      assertTrue(files.size() > 1);
      for (JarEntry entry : files) {
        String name = entry.getName();
        boolean ours = name.startsWith("io/tms/hbase/") && name.endsWith(".class");
        assertTrue(ours || name.equals("META-INF/MANIFEST.MF"), name);
        if (ours) {
          DataInputStream in = new DataInputStream(jar.getInputStream(entry));
          in.skipBytes(6); // magic, minor version
          assertEquals(JAVA_8, in.readUnsignedShort(), name);
        }
      }
      Attributes manifest = jar.getManifest().getMainAttributes();
      assertEquals(Version.NAME, manifest.getValue(Attributes.Name.IMPLEMENTATION_VERSION));
      assertEquals(Version.NAME, System.getProperty("tms.version"));
    }
  }
}
