// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// reconciler ends leases of this node and cluster whose claims are gone: deleted, or allocated elsewhere, without the kubelet
// having said so. That happens when its state was lost. A lease that a pod may still use is never ended here:
//
//   - claims are read from the API server anew each time, and an answer that fails ends nothing;
//   - a lease is ended when it was without a claim at two looks in a row that are `grace` apart;
//   - prepare and unprepare do not run meanwhile.
type reconciler struct {
	driver  *driver
	every   time.Duration
	grace   time.Duration
	last    time.Time
	suspect map[uint64]time.Time
}

const claimsPerPage = 500

func (r *reconciler) run(ctx context.Context, seen *snapshot) {
	due := r.every
	if len(r.suspect) > 0 {
		due = r.grace
	}
	if !r.last.IsZero() && time.Since(r.last) < due {
		return
	}
	r.last = time.Now()
	r.driver.leasing.Lock()
	defer r.driver.leasing.Unlock()
	if err := r.look(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot look for leases without a claim; nothing was released")
	}
}

// shares is what is in use here, by claim: the shares of this driver that its allocation has.
type sharesInUse map[types.UID]map[string]bool

func (r *reconciler) look(ctx context.Context) error {
	d := r.driver
	// First the leases, then the claims: what is made meanwhile is in neither list, or in the second.
	leases, err := d.terrace.leases(ctx, "")
	if err != nil {
		return err
	}
	if err := r.dropFiles(ctx, leases); err != nil {
		return err
	}
	leases = r.ours(leases)
	if len(leases) == 0 {
		r.suspect = nil
		return nil
	}
	used, err := r.used(ctx)
	if err != nil {
		return err
	}
	suspect := map[uint64]time.Time{}
	for _, lease := range leases {
		parts, _ := parseLabel(lease.Label)
		if used[types.UID(parts.uid)][parts.share] || (lease.Phase != "active" && lease.Phase != "revoking") {
			continue
		}
		since, again := r.suspect[lease.ID]
		if !again {
			since = time.Now()
			klog.FromContext(ctx).Info("A lease has no claim; it is released if that stays so", "lease", lease.ID, "label", lease.Label, "grace", r.grace)
		}
		if again && time.Since(since) >= r.grace {
			if err := d.end(ctx, lease, "its claim is no more, or allocated elsewhere"); err == nil {
				continue
			}
		}
		suspect[lease.ID] = since
	}
	r.suspect = suspect
	return nil
}

func (r *reconciler) ours(leases []terraceLease) []terraceLease {
	var ours []terraceLease
	for _, lease := range leases {
		if parts, _ := parseLabel(lease.Label); parts.owner == r.driver.owner {
			ours = append(ours, lease)
		}
	}
	return ours
}

// dropFiles removes descriptions of leases that are no more: one that expired, or of a manager with another store.
func (r *reconciler) dropFiles(ctx context.Context, leases []terraceLease) error {
	alive := map[uint64]bool{}
	for _, lease := range leases {
		alive[lease.ID] = true
	}
	files, err := r.driver.cdi.described("k8s-" + r.driver.owner + "-")
	if err != nil {
		return err
	}
	for _, lease := range files {
		if alive[lease] {
			continue
		}
		if err := r.driver.cdi.forget(ctx, lease); err != nil {
			return fmt.Errorf("lease %d: %w", lease, err)
		}
		klog.FromContext(ctx).Info("Removed the description of a lease that is no more", "lease", lease)
	}
	return nil
}

func (r *reconciler) used(ctx context.Context) (sharesInUse, error) {
	used := sharesInUse{}
	options := metav1.ListOptions{Limit: claimsPerPage}
	for {
		page, err := r.driver.kube.ResourceV1().ResourceClaims("").List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list claims: %w", err)
		}
		for _, claim := range page.Items {
			if claim.Status.Allocation != nil {
				used.add(r.driver.name, claim.UID, claim.Status.Allocation.Devices.Results)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return used, nil
		}
	}
}

func (s sharesInUse) add(driver string, uid types.UID, results []resourceapi.DeviceRequestAllocationResult) {
	for _, result := range results {
		if result.Driver != driver {
			continue
		}
		if s[uid] == nil {
			s[uid] = map[string]bool{}
		}
		s[uid][shareHash(&result)] = true
	}
}
