// Package smallfile reads the small files of model folders, which others may have written, without trusting
// their size.
package smallfile

import (
	"fmt"
	"io"
	"os"
)

// Limit bounds a file, in bytes. Real ones take a few kilobytes, a megabyte with many labels.
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
		return nil, fmt.Errorf("%s: more than %d bytes", path, Limit)
	}
	return data, nil
}
