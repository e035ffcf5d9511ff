package libtorch

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Dependencies returns the names of the libraries that a shared library in folder origin needs, and its search path. It
// reads only these strings: libtorch's string table has megabytes of symbols.
func Dependencies(file *elf.File, origin string) (needed, dirs []string, err error) {
	for _, tag := range []elf.DynTag{elf.DT_NEEDED, elf.DT_RPATH, elf.DT_RUNPATH} {
		offsets, err := file.DynValue(tag)
		if err != nil {
			return nil, nil, err
		}
		for _, offset := range offsets {
			text, err := dynamicString(file, int64(offset))
			if err != nil {
				return nil, nil, err
			}
			if tag == elf.DT_NEEDED {
				needed = append(needed, text)
				continue
			}
			for _, dir := range strings.Split(text, ":") {
				dirs = append(dirs, strings.ReplaceAll(dir, "$ORIGIN", origin))
			}
		}
	}
	return needed, dirs, nil
}

// dynamicString returns the string at an offset of the dynamic section's string table.
func dynamicString(file *elf.File, offset int64) (string, error) {
	dynamic := file.SectionByType(elf.SHT_DYNAMIC)
	if dynamic == nil || int(dynamic.Link) >= len(file.Sections) {
		return "", errors.New("its dynamic section has no strings")
	}
	table := file.Sections[dynamic.Link]
	text, err := bufio.NewReader(io.NewSectionReader(table, offset, int64(table.Size)-offset)).ReadString(0)
	if err != nil {
		return "", fmt.Errorf("string %d of its dynamic section: %w", offset, err)
	}
	return strings.TrimSuffix(text, "\x00"), nil
}

// system are the beginnings of the names of libraries that every Linux system has.
var system = []string{"ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libgcc_s.", "libstdc++."}

// lacks returns a library that the one at path, or one of those that it finds, needs but does not find.
func lacks(path string, seen map[string]bool) (string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	needed, dirs, err := Dependencies(file, filepath.Dir(path))
	if err != nil {
		return "", err
	}
next:
	for _, name := range needed {
		for _, prefix := range system {
			if strings.HasPrefix(name, prefix) {
				continue next
			}
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		for _, dir := range dirs {
			found := filepath.Join(dir, name)
			if _, err := os.Stat(found); err != nil {
				continue
			}
			if missing, err := lacks(found, seen); missing != "" || err != nil {
				return missing, err
			}
			continue next
		}
		return name, nil
	}
	return "", nil
}
