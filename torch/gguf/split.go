package gguf

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// splitName matches the end of a part's name: "-00001-of-00003.gguf".
var splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

const (
	splitNumber  = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// parts returns all files of the model that contains path, in order.
func parts(path string) ([]string, error) {
	m := splitName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return []string{path}, nil
	}
	n, _ := strconv.Atoi(m[3])
	if number, _ := strconv.Atoi(m[2]); n < 1 || number < 1 || number > n {
		return nil, fmt.Errorf("%s: its name says part %s of %s", path, m[2], m[3])
	}
	var list []string
	for i := 1; i <= n; i++ {
		part := filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i, n))
		if _, err := os.Stat(part); err != nil {
			return nil, fmt.Errorf("%s: part %d of %d is missing: %w", path, i, n, err)
		}
		list = append(list, part)
	}
	return list, nil
}

// checkPart compares split metadata with the file's name: part i of n, from 0.
func (f *File) checkPart(i, n int) error {
	for key, want := range map[string]int{splitNumber: i, splitCount: n} {
		found, ok, err := f.Int(key)
		if err != nil {
			return err
		}
		if (ok || n > 1) && found != int64(want) && !(key == splitCount && n == 1 && found == 0) {
			return fmt.Errorf("%s is %d, but by its name the file is part %d of %d", key, found, i+1, n)
		}
	}
	return nil
}

// checkSplit compares the number of tensors in all parts with the number in the first part's metadata.
func (f *File) checkSplit(n int) error {
	want, ok, err := f.Int(splitTensors)
	if err != nil {
		return err
	}
	if n > 1 && ok && want != int64(len(f.tensors)) {
		return fmt.Errorf("%s is %d, but the %d parts hold %d tensors", splitTensors, want, n, len(f.tensors))
	}
	return nil
}
