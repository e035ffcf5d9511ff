// Package smallfile reads small files of untrusted model folders, with a size limit.
package smallfile

import (
	"fmt"
	"io"
	"os"
)

// Limit is the maximum size in bytes. Real files have kilobytes, with many labels a megabyte.
const Limit = 16 << 20

// Read reads a file of at most Limit bytes. Errors name the file.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, Limit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > Limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, Limit)
	}
	return data, nil
}
