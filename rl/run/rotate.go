package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// newSuffix ends the name of a new run's folder while an older run uses its final name.
const newSuffix = ".new"

// resolve follows symbolic links, so that runs in a linked folder stay on its disk when they are renamed.
func resolve(dir string) string {
	dir = filepath.Clean(dir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// placeFor returns the folder of a new run and clears it: dir, or dir+newSuffix if dir holds a run worth keeping.
func placeFor(dir string) (string, error) {
	if err := finishMove(dir); err != nil {
		return "", err
	}
	at := dir
	if worthKeeping(dir) {
		lock, err := lockDir(dir) // another process may still write it
		if err != nil {
			return "", err
		}
		lock.release()
		at = dir + newSuffix
	}
	return at, clear(at)
}

// clear removes a run without a checkpoint from dir.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isRun(dir) {
		// A process killed while it creates its run leaves only these files.
		var foreign []string
		for _, e := range entries {
			if name := e.Name(); name != lockFile && !strings.HasPrefix(name, "."+runFile) {
				foreign = append(foreign, name)
			}
		}
		if len(foreign) > 0 {
			return fmt.Errorf("%s is not a run of %s and contains %s; choose another folder or empty it", filepath.Base(dir), program, someOf(foreign))
		}
		return nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := removeRun(dir); err != nil {
		return fmt.Errorf("removing a run without checkpoints: %w", err)
	}
	return nil
}

// worthKeeping reports whether the run in dir has finished or has a checkpoint.
func worthKeeping(dir string) bool {
	if !isRun(dir) {
		return false
	}
	record, err := ReadRun(dir)
	if err != nil || record.Status == StatusFinished {
		return true // never remove what cannot be read
	}
	found, err := listCheckpoints(filepath.Join(dir, checkpointsDir))
	return err != nil || slices.ContainsFunc(found, func(c checkpointEntry) bool { return !c.unfinished })
}

// Settle moves the run to its final folder once it has a checkpoint or has finished.
func (r *Run) Settle() error {
	if r.dir == r.home {
		return nil
	}
	if err := r.shift(); err != nil {
		return fmt.Errorf("moving the previous run: %w", err)
	}
	if err := os.Rename(r.dir, r.home); err != nil {
		return fmt.Errorf("moving the run to its folder: %w", err)
	}
	r.lock.moved(r.home)
	r.dir = r.home
	return nil
}

// shift moves the run in home to home.1, home.1 to home.2 and so on. It keeps keepRuns of them, and always the last
// finished one.
func (r *Run) shift() error {
	lock, err := lockDir(r.home)
	if err != nil {
		return err
	}
	defer lock.release()
	runs := []string{r.home}
	for n := 1; ; n++ {
		old := r.home + "." + strconv.Itoa(n)
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if !isRun(old) {
			return fmt.Errorf("%s is in the way of an older run and is not a run of %s; move it", old, program)
		}
		runs = append(runs, old)
	}
	var kept []string
	finished := false
	for i, dir := range runs {
		record, err := ReadRun(dir)
		last := !finished && err == nil && record.Status == StatusFinished
		finished = finished || last
		if i < max(1, r.keepRuns) || last {
			kept = append(kept, dir)
		} else if err := removeRun(dir); err != nil {
			return err
		}
	}
	for i, dir := range slices.Backward(kept) {
		name := r.home + "." + strconv.Itoa(i+1)
		if dir == name {
			continue
		}
		if err := os.Rename(dir, name); err != nil {
			return err
		}
		if i == 0 {
			lock.moved(name)
		}
	}
	return nil
}

// finishMove completes a Settle that was killed between its two moves.
func finishMove(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || !worthKeeping(dir+newSuffix) {
		return nil
	}
	return os.Rename(dir+newSuffix, dir)
}

// isRun reports whether any version of this program wrote dir.
func isRun(dir string) bool {
	data, err := smallfile.ReadAll(filepath.Join(dir, runFile))
	var mark struct {
		Program string `json:"program"`
	}
	return err == nil && json.Unmarshal(data, &mark) == nil && mark.Program == program
}

// removeRun deletes the folder, with run.json last, so that a partly deleted run is still recognised.
func removeRun(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == runFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func someOf(names []string) string {
	const shown = 3
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// lockFile is locked by the process that writes a run folder.
const lockFile = ".lock"

// dirLock keeps other processes from writing a folder. The kernel releases it when the process dies.
type dirLock struct {
	file *flock.Flock
	path string
}

// lockDir locks dir. The error names the process that holds the lock.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockFile)
	for {
		file := flock.New(path)
		got, err := file.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking: %w; choose a writable folder", err)
		}
		if !got {
			_ = file.Close()
			return nil, errors.New(busy(dir))
		}
		// The previous owner removes the file before it unlocks it, so the locked file may be gone.
		held, err := file.Stat()
		if seen, serr := os.Stat(path); err == nil && serr == nil && os.SameFile(held, seen) {
			return &dirLock{file: file, path: path}, nil
		}
		_ = file.Close()
	}
}

// moved updates the path after the folder was renamed.
func (l *dirLock) moved(dir string) { l.path = filepath.Join(dir, lockFile) }

// release removes the file and unlocks it. It ignores errors: an unlocked file blocks nobody.
func (l *dirLock) release() {
	_ = os.Remove(l.path)
	_ = l.file.Close()
}

func busy(dir string) string {
	text := "in use by another process"
	if record, err := ReadRun(dir); err == nil && record.PID > 0 {
		text += fmt.Sprintf(" (pid %d)", record.PID)
	}
	return text + "; wait for it, or choose another folder"
}
