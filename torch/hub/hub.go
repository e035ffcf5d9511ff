// Package hub finds model folders: a folder of the user's own, or a name in the cache that `make` fills.
package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CacheDir is where `make` keeps downloads: $RLTRAIN_CACHE, else rltrain in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("RLTRAIN_CACHE"); dir != "" {
		return dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w", err)
	}
	return filepath.Join(base, "rltrain"), nil
}

// Resolve finds the folder of a model and the name that saved files should give it: for a folder, its
// absolute path; for a name in the cache ("sentence-transformers/all-MiniLM-L6-v2", or its last part where
// that is not ambiguous), the whole name. Errors say where it looked.
func Resolve(model string) (dir, name string, err error) {
	if info, statErr := os.Stat(model); statErr == nil {
		if !info.IsDir() {
			return "", "", fmt.Errorf("model %s is a file; name its folder", model)
		}
		if dir, err = filepath.Abs(model); err != nil {
			return "", "", fmt.Errorf("model %s: %w", model, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
			return "", "", fmt.Errorf("model folder %s has no config.json: it is not a model in the Hugging Face layout", model)
		}
		return dir, dir, nil
	} else if !errors.Is(statErr, fs.ErrNotExist) {
		return "", "", fmt.Errorf("model: %w", statErr)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	models := filepath.Join(cache, "models")
	if model == "" || !filepath.IsLocal(model) || strings.Count(model, "/") > 1 {
		return "", "", fmt.Errorf("model folder %q does not exist", model)
	}
	pattern := filepath.Join(models, model, "config.json")
	if !strings.Contains(model, "/") {
		pattern = filepath.Join(models, "*", model, "config.json")
	}
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", "", fmt.Errorf("model %q: %w", model, err)
	}
	switch len(found) {
	case 1:
		dir = filepath.Dir(found[0])
		name, err = filepath.Rel(models, dir)
		return dir, filepath.ToSlash(name), err
	case 0:
		return "", "", fmt.Errorf("model %q is neither a folder nor in %s; give a model folder, or run `make models` for the default one", model, models)
	default:
		return "", "", fmt.Errorf("model %q is ambiguous: %s; give the whole name", model, strings.Join(found, ", "))
	}
}
