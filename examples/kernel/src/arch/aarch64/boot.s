// From QEMU's entry (EL1, paging off, x0: device tree if the loader gives one) to Rust in the upper half; and from PSCI's
// CPU_ON to the same. Boot tables: the first 512 GiB in 1 GiB blocks, the first of them devices. Both halves use them at
// first; the lower half is then each space's.

.section .text.boot, "ax"
.globl _start
_start:
    mov x20, x0
    mov x21, #0                 // the first CPU
    adrp x1, boot_l1
    mov x2, #0
    mov x3, #0x405              // block, device, accessed
    movk x3, #0x60, lsl #48     // never executed
    str x3, [x1]
    mov x3, #0x701              // block, normal, inner shareable, accessed
1:  add x2, x2, #1
    orr x4, x3, x2, lsl #30
    str x4, [x1, x2, lsl #3]
    cmp x2, #511
    b.ne 1b
    adrp x2, boot_l0
    orr x4, x1, #3
    str x4, [x2]
    dsb sy
    b paging_on

.globl ap_start
ap_start:                       // x0: where the stack ends
    mov x20, x0
    mov x21, #1

paging_on:
    mov x0, #3 << 20            // floating point at EL1
    msr cpacr_el1, x0
    ldr x0, =0x00ff             // 0: normal, write-back; 1: device
    msr mair_el1, x0
    ldr x0, =0xb5103510         // 48 bits in each half, 4 KiB, cached inner-shareable walks
    mrs x1, id_aa64mmfr0_el1
    and x1, x1, #15
    cmp x1, #5
    mov x2, #5
    csel x1, x1, x2, ls
    orr x0, x0, x1, lsl #32
    mrs x1, id_aa64mmfr1_el1    // accessed and dirty bits by hardware, where there
    ands x1, x1, #15
    b.eq 2f
    orr x0, x0, #1 << 39
    cmp x1, #2
    b.lo 2f
    orr x0, x0, #1 << 40
2:  msr tcr_el1, x0
    adrp x0, boot_l0
    msr ttbr0_el1, x0
    msr ttbr1_el1, x0
    isb
    tlbi vmalle1
    dsb nsh
    isb
    mrs x0, sctlr_el1
    mov x1, #0x1005             // MMU, data and instruction caches
    orr x0, x0, x1
    msr sctlr_el1, x0
    isb
    ldr x0, =high_start
    br x0

.section .text
high_start:
    ldr x0, =vectors
    msr vbar_el1, x0
    mov x29, #0
    mov x30, #0
    cbnz x21, 3f
    ldr x0, =boot_stack_top
    mov sp, x0
    mov x0, x20
    bl first_cpu
3:  mov sp, x20
    bl further_cpu
    .ltorg

.section .bss
    .balign 4096
.globl boot_l0
boot_l0:
    .skip 4096
boot_l1:
    .skip 4096
    .skip 65536
boot_stack_top:

// Exceptions: everything that Rust may change is kept on the stack, and what a nested exception would.
.section .text
.macro entry kind
    .balign 128
    sub sp, sp, #768
    stp x0, x1, [sp]
    mov x0, #\kind
    b exception_common
.endm

    .balign 2048
vectors:
.irp kind, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    entry \kind
.endr

exception_common:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x29, x30, [sp, #160]
    mrs x2, elr_el1
    mrs x3, spsr_el1
    stp x2, x3, [sp, #176]
    mrs x2, fpcr
    mrs x3, fpsr
    stp x2, x3, [sp, #192]
    add x4, sp, #256
    stp q0, q1, [x4]
    stp q2, q3, [x4, #32]
    stp q4, q5, [x4, #64]
    stp q6, q7, [x4, #96]
    stp q16, q17, [x4, #128]
    stp q18, q19, [x4, #160]
    stp q20, q21, [x4, #192]
    stp q22, q23, [x4, #224]
    stp q24, q25, [x4, #256]
    stp q26, q27, [x4, #288]
    stp q28, q29, [x4, #320]
    stp q30, q31, [x4, #352]
    stp q8, q9, [x4, #384]
    stp q10, q11, [x4, #416]
    stp q12, q13, [x4, #448]
    stp q14, q15, [x4, #480]
    mov x1, sp
    bl exception
    add x4, sp, #256
    ldp q0, q1, [x4]
    ldp q2, q3, [x4, #32]
    ldp q4, q5, [x4, #64]
    ldp q6, q7, [x4, #96]
    ldp q16, q17, [x4, #128]
    ldp q18, q19, [x4, #160]
    ldp q20, q21, [x4, #192]
    ldp q22, q23, [x4, #224]
    ldp q24, q25, [x4, #256]
    ldp q26, q27, [x4, #288]
    ldp q28, q29, [x4, #320]
    ldp q30, q31, [x4, #352]
    ldp q8, q9, [x4, #384]
    ldp q10, q11, [x4, #416]
    ldp q12, q13, [x4, #448]
    ldp q14, q15, [x4, #480]
    ldp x2, x3, [sp, #192]
    msr fpcr, x2
    msr fpsr, x3
    ldp x2, x3, [sp, #176]
    msr elr_el1, x2
    msr spsr_el1, x3
    ldp x29, x30, [sp, #160]
    ldp x18, x19, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp]
    add sp, sp, #768
    eret
