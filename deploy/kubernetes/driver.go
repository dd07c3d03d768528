// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

// driver is the node's part: claims become leases of the manager on this node. It keeps nothing that matters: what is prepared
// is what leases' labels say, so a kill at any place is taken up by the next call.
type driver struct {
	name    string // of the driver, for Kubernetes
	node    string
	owner   string // of cluster and node, in labels
	tenant  string // whose leases they are; {namespace} is the claim's
	kube    kubernetes.Interface
	terrace *manager
	cdi     describer
	fatal   func(error)
	notify  func(ctx context.Context, uid types.UID, claim types.NamespacedName, notice claimNotice)

	// Held while leases are made or ended: by prepare and unprepare, and by what looks for leaks.
	leasing sync.Mutex
	// Pools as they were published; the name for Kubernetes is the key.
	pools poolIndex
	state health
}

var _ kubeletplugin.DRAPlugin = &driver{}

// PrepareResourceClaims makes each claim's leases, or finds those that are there.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.leasing.Lock()
	defer d.leasing.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(ctx, claim)
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
			klog.FromContext(ctx).Error(err, "Not prepared", "uid", claim.UID)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	shares, err := sharesOf(claim, d.name)
	if err != nil {
		return nil, err
	}
	if err := choosePaths(shares); err != nil {
		return nil, err
	}
	var devices []kubeletplugin.Device
	for _, one := range shares {
		device, err := d.prepareShare(ctx, &one)
		if err != nil {
			return nil, fmt.Errorf("request %s: %w", one.result.Request, err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// choosePaths gives each share without a path one: /run/terrace-lease/REQUEST, and with the share's hash where a request has several.
func choosePaths(shares []share) error {
	count := map[string]int{}
	for _, one := range shares {
		count[one.result.Request]++
	}
	taken := map[string]string{}
	for at := range shares {
		one := &shares[at]
		if one.options.Path == "" {
			request, _, _ := strings.Cut(one.result.Request, "/")
			one.options.Path = "/run/terrace-lease/" + request
			if count[one.result.Request] > 1 {
				one.options.Path += "-" + shareHash(&one.result)
			}
		}
		if other, again := taken[one.options.Path]; again {
			return fmt.Errorf("requests %s and %s both have the path %s: give each its own parameters", other, one.result.Request, one.options.Path)
		}
		taken[one.options.Path] = one.result.Request
	}
	return nil
}

func (d *driver) prepareShare(ctx context.Context, one *share) (kubeletplugin.Device, error) {
	pool, err := d.poolOf(ctx, one.result.Pool)
	if err != nil {
		return kubeletplugin.Device{}, err
	}
	high, low := one.key(d.owner)
	act := grantAct{
		Pool: pool, Tenant: inNamespace(d.tenant, one.claim.Namespace), Bytes: one.bytes, Mode: one.options.Mode,
		TTLNs: uint64(one.options.ttl), Persistent: one.options.ttl == 0, Label: one.label(d.owner), RequestHigh: high, RequestLow: low,
	}
	lease, err := d.terrace.grant(ctx, act)
	if err != nil {
		return kubeletplugin.Device{}, err
	}
	if err := fits(lease, act); err != nil {
		return kubeletplugin.Device{}, err
	}
	parts, _ := parseLabel(lease.Label)
	device, err := d.cdi.describe(ctx, lease, parts.cdiName(lease.ID), one.options)
	if err != nil {
		return kubeletplugin.Device{}, err
	}
	klog.FromContext(ctx).Info("Prepared", "claim", one.claim, "uid", one.uid, "request", one.result.Request, "lease", lease.ID,
		"bytes", lease.Bytes, "pool", pool, "device", device)
	return kubeletplugin.Device{
		Requests: []string{one.result.Request}, PoolName: one.result.Pool, DeviceName: one.result.Device,
		CDIDeviceIDs: []string{device}, ShareID: one.result.ShareID,
	}, nil
}

// fits is whether the lease of the key is what the claim has: the manager answers with the first grant's.
func fits(lease terraceLease, act grantAct) error {
	if lease.Phase != "active" {
		return fmt.Errorf("lease %d of this claim is being taken back (%s%s): delete the pods that use the claim, and the claim unless "+
			"it is theirs", lease.ID, lease.Phase, map[bool]string{true: ", " + lease.Reason}[lease.Reason != ""])
	}
	if lease.Pool != act.Pool || lease.Bytes < act.Bytes || lease.Label != act.Label {
		return fmt.Errorf("lease %d has %d bytes of pool %s, and the claim %d of %s: release it with 'terrace lease release %d' if no pod has it",
			lease.ID, lease.Bytes, lease.Pool, act.Bytes, act.Pool, lease.ID)
	}
	return nil
}

func (d *driver) poolOf(ctx context.Context, name string) (string, error) {
	if pool, known := d.pools.find(name); known {
		return pool, nil
	}
	// Not looked yet, or made since.
	seen, err := d.terrace.look(ctx, "")
	if err != nil {
		return "", err
	}
	for _, pool := range seen.Pools {
		if poolName(d.node, pool.Name) == name {
			return pool.Name, nil
		}
	}
	return "", fmt.Errorf("there is no pool %s on node %s any more; 'terrace pool list' there shows which there are", name, d.node)
}

// UnprepareResourceClaims gives the claims' leases back. A claim without any has been unprepared already.
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.leasing.Lock()
	defer d.leasing.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(ctx, claim)
	}
	return results, nil
}

func (d *driver) unprepare(ctx context.Context, claim kubeletplugin.NamespacedObject) error {
	leases, err := d.terrace.leases(ctx, inNamespace(d.tenant, claim.Namespace))
	if err != nil {
		return fmt.Errorf("claim %s: %w", claim.NamespacedName, err)
	}
	var problems []error
	for _, lease := range leases {
		if parts, _ := parseLabel(lease.Label); parts.owner == d.owner && parts.uid == string(claim.UID) {
			problems = append(problems, d.end(ctx, lease, "its claim is not in use any more"))
		}
	}
	return errors.Join(problems...)
}

// end removes the description first: an engine must not find what leads to memory that may be another's.
func (d *driver) end(ctx context.Context, lease terraceLease, why string) error {
	if err := d.cdi.forget(ctx, lease.ID); err != nil {
		return fmt.Errorf("lease %d: %w", lease.ID, err)
	}
	if lease.Phase != "active" && lease.Phase != "revoking" {
		return nil // the manager is at it already
	}
	if err := d.terrace.release(ctx, lease.ID); err != nil {
		return fmt.Errorf("lease %d: %w", lease.ID, err)
	}
	klog.FromContext(ctx).Info("Released", "lease", lease.ID, "label", lease.Label, "why", why)
	return nil
}

// HandleError is what the helper calls with problems of its own.
func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	runtime.HandleErrorWithContext(ctx, err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}
