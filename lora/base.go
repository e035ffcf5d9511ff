package lora

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// baseHashKey is the name under which a file of tensors has the hash of the base weights. PEFT, which complains of
// fields that it does not know in adapter_config.json, leaves the pairs of a safetensors header alone.
const baseHashKey = "base_model_sha256"

// recorded is c as the files in dir are to have it: a base model that is a folder by its path from dir where both
// belong to one output, so that they can be moved together, else by its absolute path; and the hash of its weights.
func (c Config) recorded(dir string) (Config, error) {
	info, err := os.Stat(c.BaseModel)
	if c.BaseModel == "" || c.Revision != "" || err != nil || !info.IsDir() {
		return c, nil // of the Hub, or a folder that is gone
	}
	base, err := filepath.Abs(c.BaseModel)
	if err != nil {
		return c, err
	}
	if c.BaseHash, err = HashWeights(base); err != nil {
		return c, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return c, err
	}
	c.BaseModel = base
	inside, err := filepath.Rel(filepath.Dir(base), dir)
	if err != nil || !filepath.IsLocal(inside) || inside == "." {
		return c, nil
	}
	// OUTPUT/STAGE, or OUTPUT/STAGE/checkpoints/checkpoint-N.
	parts := strings.Split(filepath.ToSlash(inside), "/")
	if len(parts) == 1 || len(parts) == 3 && parts[1] == "checkpoints" {
		relative, err := filepath.Rel(dir, base)
		if err != nil {
			return c, err
		}
		c.BaseModel = filepath.ToSlash(relative)
	}
	return c, nil
}

// located is c, read in dir, with a base model that begins with "./" or "../" as a path that holds wherever the
// program runs. Where there is no such folder seen from dir, it may be one seen from here, as PEFT has it.
func (c Config) located(dir string) (Config, error) {
	if !strings.HasPrefix(c.BaseModel, "./") && !strings.HasPrefix(c.BaseModel, "../") {
		return c, nil
	}
	path := filepath.Join(dir, filepath.FromSlash(c.BaseModel))
	if !isFolder(path) && isFolder(c.BaseModel) {
		path = c.BaseModel
	}
	var err error
	c.BaseModel, err = filepath.Abs(path)
	return c, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// CheckBase is an error where dir holds other weights than those that the adapter was trained on. An adapter whose
// files do not say is for any.
func (c Config) CheckBase(dir string) error {
	if c.BaseHash == "" {
		return nil
	}
	hash, err := HashWeights(dir)
	if err != nil {
		return err
	}
	if hash != c.BaseHash {
		return fmt.Errorf("the weights in %s are not those that the adapter was trained on (SHA-256 %.12s, the adapter has %.12s): find the folder of that time, or name the base model and the adapter by themselves", dir, hash, c.BaseHash)
	}
	return nil
}

// weightFiles match the files of a model's weights, the layouts that are preferred first.
var weightFiles = []string{"model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin"}

// HashWeights is the SHA-256 of the weights in a model folder, in hexadecimal; "" where it has none. A file that is
// unchanged since the last call is not read again.
func HashWeights(dir string) (string, error) {
	for _, pattern := range weightFiles {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return "", fmt.Errorf("hashing the weights in %s: %w", dir, err)
		}
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		all := sha256.New()
		for _, name := range names {
			sum, err := hashes.of(filepath.Join(dir, name))
			if err != nil {
				return "", fmt.Errorf("hashing the weights: %w", err)
			}
			all.Write(sum[:])
		}
		return hex.EncodeToString(all.Sum(nil)), nil
	}
	return "", nil
}

// hashes are the files that were hashed already.
var hashes = known{sums: map[stamp][sha256.Size]byte{}}

type known struct {
	mu   sync.Mutex
	sums map[stamp][sha256.Size]byte
}

// stamp tells one state of a file from another.
type stamp struct {
	path     string
	size     int64
	modified time.Time
}

func (k *known) of(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sum, err
	}
	key := stamp{path, info.Size(), info.ModTime()}
	k.mu.Lock()
	defer k.mu.Unlock()
	if sum, ok := k.sums[key]; ok {
		return sum, nil
	}
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	hash.Sum(sum[:0])
	if err == nil {
		k.sums[key] = sum
	}
	return sum, err
}
