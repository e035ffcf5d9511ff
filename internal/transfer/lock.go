package transfer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Lock waits until no other process or goroutine holds the lock file at path, which stays after unlocking. It calls
// waiting once if it has to wait.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	file := flock.New(path, flock.SetPermissions(0o664))
	got, err := file.TryLock()
	if err == nil && !got {
		waiting()
		_, err = file.TryLockContext(ctx, 50*time.Millisecond)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking %s: %w", file.Path(), err)
	}
	return func() { _ = file.Close() }, nil
}
