package run

import (
	"bytes"
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
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
)

const (
	checkpointsDir   = "checkpoints"
	checkpointPrefix = "checkpoint-"
	unfinishedSuffix = ".tmp"
	manifestFile     = "manifest.json"
)

// manifest lists the files of a checkpoint. It is written last, so a checkpoint with a valid manifest is complete.
type manifest struct {
	Step  int             `json:"step"`
	Files []manifestEntry `json:"files"`
}

type manifestEntry struct {
	Name   string `json:"name"` // relative to the checkpoint, with slashes
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// SaveCheckpoint writes runDir/checkpoints/checkpoint-<step>. write fills an empty temporary folder. SaveCheckpoint adds
// manifest.json with sizes and SHA-256 sums, syncs everything to disk, and renames the folder. Then it removes all but the
// newest keep checkpoints; the one just written always stays.
//
// [LatestCheckpoint] works after a kill at any point. An error leaves the existing checkpoints unchanged.
func SaveCheckpoint(runDir string, step, keep int, write func(dir string) error) error {
	if step < 0 || keep < 1 {
		return fmt.Errorf("checkpoint %d, keep %d: step must be at least 0 and keep at least 1", step, keep)
	}
	if err := saveCheckpoint(runDir, step, write); err != nil {
		return fmt.Errorf("checkpoint %d: %w", step, err)
	}
	if err := rotate(runDir, step, keep); err != nil {
		return fmt.Errorf("removing old checkpoints: %w", err)
	}
	return nil
}

func saveCheckpoint(runDir string, step int, write func(dir string) error) error {
	root := filepath.Join(runDir, checkpointsDir)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := settle(root); err != nil {
		return fmt.Errorf("cleaning up after a killed process: %w", err)
	}
	final := checkpointPath(root, step)
	tmp := final + unfinishedSuffix
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	err := write(tmp)
	if err == nil {
		err = seal(tmp, step)
	}
	if err != nil {
		_ = os.RemoveAll(tmp) // the next save removes any rest
		return err
	}
	return promote(tmp, final)
}

// LatestCheckpoint finds the newest checkpoint of runDir whose files match its manifest. skipped describes newer damaged
// ones. dir is "" if there is no checkpoint. If all are damaged, that is an error.
func LatestCheckpoint(runDir string) (dir string, step int, skipped []string, err error) {
	root := filepath.Join(runDir, checkpointsDir)
	found, err := listCheckpoints(root)
	if err != nil {
		return "", 0, nil, err
	}
	for _, c := range found {
		damage := verify(c.dir, c.step)
		if damage == nil {
			return c.dir, c.step, skipped, nil
		}
		// A folder without its final name is usually incomplete, not damaged.
		if !c.unfinished {
			skipped = append(skipped, fmt.Sprintf("%s: %v", filepath.Base(c.dir), damage))
		}
	}
	if len(skipped) > 0 {
		return "", 0, skipped, fmt.Errorf("%s: every checkpoint is damaged (%s)", root, strings.Join(skipped, "; "))
	}
	return "", 0, nil, nil
}

// checkpointAt verifies that dir is a complete checkpoint of runDir and removes later ones, so that a later resume does not
// start from them. An error changes nothing.
func checkpointAt(runDir, dir string) (step int, err error) {
	found, err := listCheckpoints(filepath.Join(runDir, checkpointsDir))
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(found, func(c checkpointEntry) bool { return !c.unfinished && c.dir == dir })
	if at < 0 {
		return 0, fmt.Errorf("%s is not a checkpoint of the run in %s", dir, runDir)
	}
	if err := verify(dir, found[at].step); err != nil {
		return 0, fmt.Errorf("%s is damaged: %w; try an earlier checkpoint", dir, err)
	}
	for _, c := range found {
		if c.step > found[at].step {
			if err := os.RemoveAll(c.dir); err != nil {
				return 0, fmt.Errorf("removing checkpoints after %s: %w", dir, err)
			}
		}
	}
	return found[at].step, nil
}

type checkpointEntry struct {
	dir        string
	step       int
	unfinished bool
}

func checkpointPath(root string, step int) string {
	return filepath.Join(root, checkpointPrefix+strconv.Itoa(step))
}

// listCheckpoints returns the checkpoint folders, newest first. For the same step, finished ones come first.
func listCheckpoints(root string) ([]checkpointEntry, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []checkpointEntry
	for _, e := range entries {
		name, unfinished := strings.CutSuffix(e.Name(), unfinishedSuffix)
		digits, ok := strings.CutPrefix(name, checkpointPrefix)
		step, err := strconv.Atoi(digits)
		if !e.IsDir() || !ok || err != nil || strconv.Itoa(step) != digits || step < 0 {
			continue
		}
		found = append(found, checkpointEntry{filepath.Join(root, e.Name()), step, unfinished})
	}
	slices.SortFunc(found, func(a, b checkpointEntry) int {
		if a.step != b.step {
			return b.step - a.step
		}
		return len(a.dir) - len(b.dir)
	})
	return found, nil
}

// settle cleans up after a killed process: it renames complete checkpoints and removes incomplete ones.
func settle(root string) error {
	found, err := listCheckpoints(root)
	if err != nil {
		return err
	}
	for _, c := range found {
		if !c.unfinished {
			continue
		}
		if verify(c.dir, c.step) == nil {
			err = promote(c.dir, checkpointPath(root, c.step))
		} else {
			err = os.RemoveAll(c.dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// promote renames a complete folder to its final name and replaces an older checkpoint of the same step. tmp is valid
// until then.
func promote(tmp, final string) error {
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	return syncPath(filepath.Dir(final))
}

// rotate removes the oldest checkpoints beyond keep. It also removes damaged checkpoints of later steps, which a resumed
// run skipped, so that they never count as newest.
func rotate(runDir string, written, keep int) error {
	root := filepath.Join(runDir, checkpointsDir)
	found, err := listCheckpoints(root)
	if err != nil {
		return err
	}
	kept := 1 // the one just written
	for _, c := range found {
		if c.step == written || c.unfinished {
			continue
		}
		stale := c.step > written && verify(c.dir, c.step) != nil
		if !stale && kept < keep {
			kept++
			continue
		}
		if err := os.RemoveAll(c.dir); err != nil {
			return err
		}
	}
	return nil
}

// seal writes the manifest of dir and syncs files and folders to disk.
func seal(dir string, step int) error {
	m := manifest{Step: step, Files: []manifestEntry{}}
	var folders []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			folders = append(folders, path)
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !e.Type().IsRegular() || name == manifestFile {
			return fmt.Errorf("%s is not allowed in a checkpoint", name)
		}
		size, sum, err := digest(path)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, manifestEntry{Name: filepath.ToSlash(name), Size: size, SHA256: sum})
		return syncPath(path)
	})
	if err != nil {
		return err
	}
	if err := files.SaveJSON(filepath.Join(dir, manifestFile), m); err != nil {
		return err
	}
	slices.Reverse(folders) // children before parents
	for _, folder := range folders {
		if err := syncPath(folder); err != nil {
			return err
		}
	}
	return nil
}

// verify checks dir against its manifest.
func verify(dir string, step int) error {
	var m manifest
	if err := files.LoadJSON(filepath.Join(dir, manifestFile), &m); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing", manifestFile)
	} else if err != nil {
		return err
	}
	if m.Step != step {
		return fmt.Errorf("%s has step %d, want %d", manifestFile, m.Step, step)
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) {
			return fmt.Errorf("%s: file %q is outside the checkpoint", manifestFile, f.Name)
		}
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is missing", f.Name)
		}
		if err != nil {
			return err
		}
		if info.Size() != f.Size {
			return fmt.Errorf("%s has %d bytes, want %d", f.Name, info.Size(), f.Size)
		}
		_, sum, err := digest(path)
		if err != nil {
			return err
		}
		if sum != f.SHA256 {
			return fmt.Errorf("%s was changed: its SHA-256 differs from the manifest", f.Name)
		}
	}
	return m.untouched(dir)
}

// untouched checks that the manifest file is byte-identical to what seal wrote. If not, other files may have changed too.
func (m manifest) untouched(dir string) error {
	want, err := files.EncodeJSON(m)
	if err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err == nil && !bytes.Equal(want, got) {
		err = fmt.Errorf("%s was changed", manifestFile)
	}
	return err
}

func digest(path string) (size int64, sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// syncPath syncs a file or folder to disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// sealed reports whether later stages or other programs compute with a file of a finished run. Reports, cards and settings
// may change.
func sealed(name string) bool {
	switch filepath.Ext(name) {
	case ".md", ".html", ".yaml":
		return false
	}
	return name != runFile && !strings.HasPrefix(name, ".")
}

// sums returns the SHA-256 sums of the sealed files in dir, by name.
func sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !sealed(e.Name()) {
			continue
		}
		if _, found[e.Name()], err = digest(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Verify checks that the files of a finished run in dir are unchanged. The error names the first changed file. Runs of older
// versions have no sums and always pass.
func (r Record) Verify(dir string) error {
	if len(r.Files) == 0 {
		return nil
	}
	now, err := sums(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		if now[name] != r.Files[name] {
			what := "was changed"
			if now[name] == "" {
				what = "was removed"
			}
			return fmt.Errorf("%s %s after the run finished; restore it, or train again without --resume", filepath.Join(dir, name), what)
		}
	}
	return nil
}
