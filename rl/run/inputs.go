package run

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// Inputs are sums of the files, folders and models that a run reads: by setting and by the name that the setting gives.
type Inputs map[string]map[string]string

// Input is one of them.
type Input struct{ Setting, Name string }

// Add notes a sum. An empty sum is ignored.
func (in Inputs) Add(setting, name, sum string) {
	if sum == "" {
		return
	}
	if in[setting] == nil {
		in[setting] = map[string]string{}
	}
	in[setting][name] = sum
}

// Changed lists what has another sum in now, in order.
func (in Inputs) Changed(now Inputs) (changed []Input) {
	for _, setting := range slices.Sorted(maps.Keys(in)) {
		for _, name := range slices.Sorted(maps.Keys(in[setting])) {
			if sum := now[setting][name]; sum != "" && sum != in[setting][name] {
				changed = append(changed, Input{setting, name})
			}
		}
	}
	return changed
}

// wholeFile is how much of a file is summed: weights beyond it count by their size.
const wholeFile = 256 << 20

// Sum is a sum of a file, or of the files of a folder without those below skip. Of a model's folder only the model's files
// count. It is "" if path is neither.
func Sum(path, skip string) (string, error) {
	info, err := os.Stat(path)
	if path == "" || err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		return "", nil
	}
	isModel := info.IsDir() && (files.Exist(path, "config.json") || files.Exist(path, "adapter_config.json"))
	sum := sha256.New()
	err = filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && skip != "" && files.Same(at, skip) {
			return filepath.SkipDir
		}
		if unreadable(err) {
			return nil
		}
		if err != nil || e.IsDir() || isModel && !ofModel(e.Name()) {
			return err
		}
		info, err := os.Stat(at) // the cache of the Hub has links
		if unreadable(err) || err == nil && !info.Mode().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		file, err := smallfile.Open(at)
		if unreadable(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer file.Close()
		name, err := filepath.Rel(path, at)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", name, info.Size())
		_, err = io.Copy(sum, io.LimitReader(file, wholeFile))
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

// unreadable reports whether a file of a folder is a dead link or not for us to read: then the run does not read it either.
func unreadable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// ofModel reports whether a file of a model's folder can change what the model does.
func ofModel(name string) bool {
	switch filepath.Ext(name) {
	case ".safetensors", ".bin", ".gguf", ".jinja", ".model":
		return true
	case ".json", ".txt":
		for _, part := range []string{"config", "token", "vocab", "merges", "template", "label", "category", "index", "policy", "modules"} {
			if strings.Contains(name, part) {
				return true
			}
		}
	}
	return false
}
