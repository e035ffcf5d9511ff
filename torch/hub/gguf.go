package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/gguf/convert"
)

const ggufEnd = ".gguf"

// importVersion changes when package convert writes other files for the same GGUF.
const importVersion = "1"

// imported returns the model in a GGUF file: a cached folder with files made from its metadata, and a link to it. A
// changed file gets a new folder.
func imported(path, name string) (Model, error) {
	m, err := importGGUF(path, name, nil)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", path, err)
	}
	return m, nil
}

// importGGUF is imported with further fields of generation_config.json.
func importGGUF(path, name string, generation map[string]any) (Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Model{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Model{}, err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%s\x00%v", path, info.Size(), info.ModTime().UnixNano(), importVersion, generation))
	stem := strings.TrimSuffix(filepath.Base(path), ggufEnd)
	dir := filepath.Join(cache, "gguf", stem+"-"+hex.EncodeToString(sum[:6]))
	if !exists(filepath.Join(dir, configFile)) {
		err := outfile.Folder(dir, func(dir string) error { return convert.WriteFolder(dir, path, generation) })
		if err != nil && !exists(filepath.Join(dir, configFile)) { // another process may have been faster
			return Model{}, err
		}
	}
	return Model{Dir: dir, Name: name}, nil
}

// partName matches the end of the name of a later part of a split file.
var partName = regexp.MustCompile(`-(\d{5})-of-\d{5}\.gguf$`)

// chooseGGUF selects the GGUF file of a model among the names in a folder or repository: the wanted one, or the only
// one. Vision projectors and later parts of split files do not count. It returns "" if there is none.
func chooseGGUF(names []string, wanted string) (string, error) {
	var found []string
	for _, name := range names {
		base := filepath.Base(name)
		if m := partName.FindStringSubmatch(base); m != nil && m[1] != "00001" || strings.HasPrefix(base, "mmproj") || !strings.HasSuffix(base, ggufEnd) {
			continue
		}
		found = append(found, name)
	}
	slices.Sort(found)
	switch {
	case wanted != "" && !slices.Contains(names, wanted):
		return "", fmt.Errorf("it has no file %.120q; its GGUF files: %s", wanted, strings.Join(found[:min(len(found), 20)], ", "))
	case wanted != "":
		return wanted, nil
	case len(found) == 0:
		return "", nil
	case len(found) > 1:
		return "", fmt.Errorf("it has %d GGUF files: %s; choose one with --gguf-file %s", len(found), strings.Join(found[:min(len(found), 20)], ", "), found[0])
	}
	return found[0], nil
}

// folderGGUF returns the GGUF file of a folder, "" if the folder is a model in the Hugging Face layout or has none.
func folderGGUF(dir string) (string, error) {
	for _, layout := range weightFiles {
		if exists(filepath.Join(dir, layout.file)) || exists(filepath.Join(dir, layout.index)) {
			return "", nil
		}
	}
	if exists(filepath.Join(dir, adapterFile)) || exists(filepath.Join(dir, convert.WeightsFile)) && exists(filepath.Join(dir, configFile)) {
		return "", nil
	}
	return ggufIn(dir, "")
}

// ggufIn returns the wanted GGUF file of a folder, or the only one; "" if there is none.
func ggufIn(dir, wanted string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	name, err := chooseGGUF(names, wanted)
	if name == "" || err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// WithFile returns the name, for [Client.Model], of one GGUF file of a model that is a folder or a repository. With file ""
// that is the model.
func WithFile(model, file string) (string, error) {
	if file == "" {
		return model, nil
	}
	if _, ok := knownModel(model); ok || strings.HasSuffix(model, ggufEnd) {
		return "", fmt.Errorf("model %s has no GGUF files to choose from", model)
	}
	if !strings.HasSuffix(file, ggufEnd) {
		return "", fmt.Errorf("%q does not end in %s", file, ggufEnd)
	}
	if !exists(model) { // a repository
		return model + "/" + file, nil
	}
	path, err := ggufIn(model, file)
	if err != nil {
		return "", fmt.Errorf("model %s: %w", model, err)
	}
	return path, nil
}

// repoGGUF parses org/name/FILE.gguf, optionally with a revision after the name; file is "" for another name.
func repoGGUF(model string) (repository, file string) {
	parts := strings.SplitN(model, "/", 3)
	if len(parts) < 3 || !strings.HasSuffix(model, ggufEnd) {
		return model, ""
	}
	return parts[0] + "/" + parts[1], parts[2]
}

// fetchGGUF downloads a GGUF file of a repository, with all parts if it is split.
func (t *tree) fetchGGUF(ctx context.Context, name string) error {
	names := []string{name}
	if m := partName.FindStringSubmatchIndex(name); m != nil {
		names = nil
		for _, other := range t.names() {
			if n := partName.FindStringSubmatchIndex(other); n != nil && len(other) == len(name) && other[:n[2]] == name[:m[2]] && other[n[3]:] == name[m[3]:] {
				names = append(names, other)
			}
		}
	}
	return t.fetch(ctx, names)
}

// checkModelFile refuses a file that is not GGUF.
func checkModelFile(model string, info fs.FileInfo) error {
	if !strings.HasSuffix(model, ggufEnd) {
		return fmt.Errorf("model %s is a file, and its name does not end in %s; name a GGUF file or the model's folder", model, ggufEnd)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("model %s is not a regular file", model)
	}
	return nil
}
