package hub

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/gguf"
)

// Cached is a model in a cache, or one of [KnownModels] that may not be cached yet.
type Cached struct {
	Name    string // for --model
	Title   string // in a few words; "" if unknown
	Licence string // "" if unknown
	Dir     string // "" if not cached
	Bytes   int64  // of the files, or of the files to download
}

// ListCached lists [KnownModels], then the other models in rltrain's cache and the Hub's cache, by name.
func ListCached() ([]Cached, error) {
	var list []Cached
	seen := map[string]bool{}
	for _, k := range known {
		dir, cached, err := k.Dir()
		if err != nil {
			return nil, err
		}
		c := Cached{Name: k.Name, Title: k.Title, Licence: k.Licence, Bytes: k.Bytes}
		if cached {
			c.Dir, c.Bytes = dir, folderBytes(dir)
		}
		seen[dir] = true
		list = append(list, c)
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	_, repositories, err := folders()
	if err != nil {
		return nil, err
	}
	var others []Cached
	for _, pattern := range []string{filepath.Join(cache, "models", "*", "*", configFile), filepath.Join(repositories, "models--*", "snapshots", "*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			c := cachedAt(path, cache, repositories)
			if !seen[c.Dir] {
				seen[c.Dir] = true
				others = append(others, c)
			}
		}
	}
	slices.SortFunc(others, func(a, b Cached) int { return strings.Compare(a.Name, b.Name) })
	return append(list, others...), nil
}

// cachedAt returns the model of a config.json in rltrain's cache, or of a snapshot in the Hub's.
func cachedAt(path, cache, repositories string) Cached {
	if rest, err := filepath.Rel(repositories, path); err == nil && filepath.IsLocal(rest) {
		repository, _, _ := strings.Cut(filepath.ToSlash(rest), "/")
		name := strings.ReplaceAll(strings.TrimPrefix(repository, "models--"), "--", "/")
		return Cached{Name: name, Licence: licence(path), Dir: path, Bytes: folderBytes(path)}
	}
	dir := filepath.Dir(path)
	name, _ := filepath.Rel(filepath.Join(cache, "models"), dir)
	return Cached{Name: filepath.ToSlash(name), Licence: licence(dir), Dir: dir, Bytes: folderBytes(dir)}
}

// folderBytes returns the size of the files in dir, following links.
func folderBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}

// licence returns the licence in the header of README.md or the metadata of a GGUF file.
func licence(dir string) string {
	if file, err := os.Open(filepath.Join(dir, cardFile)); err == nil {
		defer file.Close()
		lines := bufio.NewScanner(file)
		for n := 0; n < 200 && lines.Scan(); n++ {
			if value, ok := strings.CutPrefix(lines.Text(), "license:"); ok {
				return strings.Trim(strings.TrimSpace(value), `"'`)
			}
			if n > 0 && lines.Text() == "---" {
				break
			}
		}
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*"+ggufEnd))
	for _, path := range paths {
		if f, err := gguf.Open(path); err == nil {
			defer f.Close()
			value, _, _ := f.Text("general.license")
			return value
		}
	}
	return ""
}
